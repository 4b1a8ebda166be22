"""What a planted bug is, and the list of all."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

ROOMS = ("headers", "core", "ops", "cuda", "around", "engine", "api", "worker", "transport")
"""Modules of `bugs`: each holds `BUGS`, a list."""


EXTENSIONS = ("_core", "_save", "_results", "_chunks")
_BUILT_FROM = {
    "fd_postproc/core": ("_core",),
    "cuda": ("_save",),
    "fd_postproc/fastdeploy/engine": ("_results",),
    "fd_postproc/fastdeploy/api": ("_chunks",),
}
_USED_BY = {
    "tests/core/test_flight": ("_core", "_results"),
    "tests/core": ("_core",),
    "tests/ops": ("_core",),
    "tests/cuda": ("_core", "_save"),
    "tests/plugin/api": ("_chunks",),
}


@dataclass(frozen=True)
class Bug:
    """One line of the tree that is changed.

    Attributes
    ----------
    room : str
        Of `ROOMS`.
    path : str
    original, replacement : str
        The original occurs exactly once in the file.
    why : str
        What goes wrong with it.
    tests : str
        Arguments of pytest: the tests that are relevant.
    equivalent : str
        Why it changes nothing that a test could see; empty: it does.
    """

    room: str
    path: str
    original: str
    replacement: str
    why: str
    tests: str
    equivalent: str = ""

    @property
    def name(self) -> str:
        """File and words of the reason."""
        stem = self.path.rpartition("/")[2].replace(".", "_").strip("_")
        return f"{self.room}/{stem}/{re.sub('[^a-z0-9]+', '-', self.why.lower()).strip('-')}"

    @property
    def extensions(self) -> set[str]:
        """Those that have to be built for it: of a header, those that its tests use."""
        if not self.is_built:
            return set()
        for folder, names in _BUILT_FROM.items():
            if self.path.startswith(f"{folder}/"):
                return set(names)
        used = [
            next((names for folder, names in _USED_BY.items() if path.startswith(folder)), EXTENSIONS)
            for path in self.tests.split()
        ]
        return {name for names in used for name in names}

    @property
    def is_built(self) -> bool:
        """Whether extensions have to be built anew."""
        return self.path.endswith((".h", ".pxi", ".pyx", ".pxd"))


def in_file(path: str, tests: str, *changes: tuple[str, ...]) -> list[dict[str, str]]:
    """Bugs of one file: (why, original, replacement) each, with other tests or a reason why it is equivalent.

    Parameters
    ----------
    path : str
    tests : str
        For those that name none.
    *changes : tuple
        (why, original, replacement), (..., "tests/...") or (..., "equivalent: reason").
    """
    made = []
    for why, original, replacement, *more in changes:
        bug = {"path": path, "original": original, "replacement": replacement, "why": why, "tests": tests}
        for text in more:
            key = "equivalent" if text.startswith("equivalent: ") else "tests"
            bug[key] = text.removeprefix("equivalent: ")
        made.append(bug)
    return made


def every_bug() -> list[Bug]:
    """All, by room."""
    return [
        Bug(room, **bug)
        for room in ROOMS
        for file in importlib.import_module(f"tests.mutate.bugs.{room}").BUGS
        for bug in file
    ]
