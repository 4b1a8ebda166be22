"""Builds the benchmarks' extension, floors in C, beside its sources: ``python -m benchmarks.extensions``.

It is no part of the wheel.  What needs it imports it from `built`, which builds it if it is missing or older
than its sources; CFLAGS and LDFLAGS count, as in any build.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILT = HERE / f"_floor{EXTENSION_SUFFIXES[0]}"

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
root, temporary = sys.argv[1:]
options = {"include_dirs": [root], "extra_compile_args": ["-O3", "-g0"]}
extension = Extension("benchmarks._floor", ["benchmarks/_floor.pyx"], **options)
setup(
    name="benchmarks",
    packages=[],
    ext_modules=cythonize(extension, build_dir=temporary, include_path=[root], quiet=True, force=True),
    script_args=["-q", "build_ext", "--inplace", "--build-temp", temporary],
)
"""


class NotBuilt(ImportError):
    """The extension cannot be built here; the text says why, and what to do."""


def _sources() -> list[Path]:
    endings = ("*.pyx", "*.h")
    mine = [path for ending in endings for path in HERE.glob(ending)]
    return [*mine, *(ROOT / "fd_postproc" / "headers").iterdir(), ROOT / "fd_postproc" / "_core.pxd"]


def _is_current() -> bool:
    return BUILT.exists() and BUILT.stat().st_mtime >= max(path.stat().st_mtime for path in _sources())


def ensure() -> None:
    """Build it if it is missing or old, once, however many ask at the same time.

    Raises
    ------
    NotBuilt
        If Cython, setuptools or a compiler is missing, or the compiler fails.
    """
    if _is_current():
        return
    with open(HERE / "extensions.py") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_current():
            return
        print("benchmarks: building _floor, once", file=sys.stderr, flush=True)
        temporary = ROOT / "build" / "benchmarks"
        temporary.mkdir(parents=True, exist_ok=True)
        # Compilers do not run with a sanitizer's library loaded into them.
        done = subprocess.run(
            [sys.executable, "-c", BUILD, str(ROOT), str(temporary)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NotBuilt(
            f"_floor cannot be built: {''.join(last)} (needs gcc, python3-dev, and: pip install '.[bench]')"
        )


if __name__ == "__main__":
    try:
        ensure()
    except NotBuilt as reason:
        sys.exit(f"benchmarks: {reason}")
