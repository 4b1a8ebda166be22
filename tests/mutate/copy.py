"""A private copy of the tree, in which bugs are planted and tests are run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lib.paths import ROOT
from tests.mutate.bug import EXTENSIONS, Bug

_BUILD_S = 3600
_NO_TESTS, _USAGE = 5, 4  # pytest's exit codes

_SIGN = """
import runpy, zipfile
kernel = runpy.run_path("cuda/compile_ptx.py")
text = kernel["PTX"].read_text()
if not text.startswith(kernel["fingerprint"]()):
    text = kernel["fingerprint"]() + text.partition("\\n")[2]
    kernel["PTX"].write_text(text)
    with zipfile.ZipFile(kernel["CUBINS"], "a") as archive:
        archive.comment = kernel["_digest"](text)
"""
"""The build insists on a kernel of the present sources, and there is no compiler for it here."""


_SETUP = """
import runpy, setuptools, sys
wanted, setup = sys.argv.pop().split(","), setuptools.setup
def some(**given):
    modules = [one for one in given["ext_modules"] if one.name.rpartition(".")[2] in wanted]
    setup(**{**given, "ext_modules": modules})
setuptools.setup = some
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
"""


class BuildFailed(Exception):
    """The compiler has noticed the bug."""


class Copy:
    """The tree, with the extensions of an editable install, or built for speed of building.

    Parameters
    ----------
    folder : Path
        Where it lies; what an earlier run has built there is used again.
    """

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self._changed: set[str] = set()  # extensions that were last built of other sources
        self._follow()
        compiler = folder / "cc"
        gcc = os.environ.get("CC") or "gcc"
        if "ccache" not in gcc and shutil.which("ccache"):
            gcc = f"ccache {gcc}"
        compiler.write_text(f'#!/bin/sh\nexec {gcc} "$@" -O0\n')
        compiler.chmod(0o755)
        self.environment = {
            **os.environ,
            "CC": str(compiler),
            "CCACHE_NOHASHDIR": "1",
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _follow(self) -> None:
        """Make it equal to the tree; files that are equal keep their times, so that nothing is built anew."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        for name in wanted:
            source, target = ROOT / name, self.tree / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(source.stat().st_mode)
        built = {path.relative_to(ROOT): path for path in (ROOT / "fd_postproc").rglob("*.so")}
        if len(built) < len(EXTENSIONS):
            self._changed = set(EXTENSIONS)
        for place, path in built.items():  # those of an editable install, which a bug in Python needs only
            shutil.copy2(path, self.tree / place)
        for path in list(self.tree.rglob("*")):
            name = path.relative_to(self.tree)
            if (
                path.is_file()
                and str(name) not in wanted
                and path.suffix != ".so"
                and name.parts[0] != "build"
            ):
                path.unlink()

    def build(self, bug: Bug | None = None) -> None:
        """Build in place: what a planted bug is seen in, and what was built with another one.

        Raises
        ------
        BuildFailed
        """
        wanted = self._changed | (set() if bug is None else bug.extensions)
        self._changed = wanted if bug is None else bug.extensions
        if not wanted:
            return
        setup = ["-W", "ignore", "-c", _SETUP, "-q", "build_ext", "--inplace", ",".join(sorted(wanted))]
        for command in (["-c", _SIGN], setup):
            done = subprocess.run(
                [sys.executable, *command], cwd=self.tree, env=self.environment,
                capture_output=True, text=True, timeout=_BUILD_S,
            )  # fmt: skip
            if done.returncode:
                raise BuildFailed(done.stderr[-2000:])
        if bug is None:
            self._changed = set()

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """The tree with a bug; extensions are not built."""
        path = self.tree / bug.path
        text, before = path.read_text(), path.stat()
        if text.count(bug.original) != 1:
            raise ValueError(f"{bug.path}: {bug.original!r} occurs {text.count(bug.original)} times")
        path.write_text(text.replace(bug.original, bug.replacement))
        try:
            yield
        finally:
            path.write_text(text)
            if not bug.is_built:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            for name in ("cuda/pack.ptx", "cuda/pack.cubins.zip"):
                if (self.tree / name).read_bytes() != (ROOT / name).read_bytes():
                    shutil.copyfile(ROOT / name, self.tree / name)

    def run(self, tests: str, seconds: float) -> tuple[str, str]:
        """Run tests, up to the first that fails.

        Returns
        -------
        outcome : str
            "passed", "failed", "hung", or "nothing ran".
        told : str
            The last lines.
        """
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-o", f"faulthandler_timeout={seconds / 2:.0f}", *tests.split()]
        process = subprocess.Popen(
            command, cwd=self.tree, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return "hung", f"no end within {seconds:.0f} s"
        lines = told.strip().splitlines()
        if process.returncode in (_NO_TESTS, _USAGE):
            return "nothing ran", "\n".join(lines[-20:])
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return ("passed" if process.returncode == 0 else "failed"), (failed or lines[-1:])[0]
