"""Finds the package's modules if Python takes the sources before the installed package."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import chain
from pathlib import Path


def _is_built(folder: Path) -> bool:
    return any((folder / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _elsewhere(name: str) -> Iterator[Path]:
    """Other folders in which the package may be: on ``sys.path``, or where an editable install says."""
    for entry in sys.path:
        yield Path(entry or ".").resolve() / name
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ())


def module_path(found: Iterable[str]) -> list[str]:
    """The right ``__path__`` of the package, instead of the one that Python has made.

    In a checkout, Python finds these sources first, and ``pip install .`` has put the extensions elsewhere.
    Then the installed package is used as a whole; the two are never mixed.

    Raises
    ------
    ImportError
        If nothing is built, neither here nor anywhere else.
    """
    folders = [Path(folder) for folder in found]
    for folder in chain(folders, _elsewhere(folders[0].name)):
        if _is_built(folder):
            return [str(folder)]
    raise ImportError(
        f"{folders[0]} holds fd_postproc's sources, but nothing is built there, and fd_postproc is not "
        f"installed in {sys.prefix}: pip install {folders[0].parent} (with -e, to work on the sources)"
    )
