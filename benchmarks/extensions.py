"""Builds the benchmarks' extensions, floors in C, beside their sources: ``python -m benchmarks.extensions``.

They are no part of the wheel.  What needs them imports them from `built`, which builds what is missing or
older than its sources; CFLAGS and LDFLAGS count, as in any build.
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
NAMES = ("_floor", "_objects")

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
names, root, temporary = sys.argv[3:], sys.argv[1], sys.argv[2]
options = {"include_dirs": [root], "extra_compile_args": ["-O3", "-g0"]}
extensions = [Extension(f"benchmarks.{name}", [f"benchmarks/{name}.pyx"], **options) for name in names]
setup(
    name="benchmarks",
    packages=[],
    ext_modules=cythonize(extensions, build_dir=temporary, include_path=[root], quiet=True, force=True),
    script_args=["-q", "build_ext", "--inplace", "--build-temp", temporary],
)
"""


class NotBuilt(ImportError):
    """The extensions cannot be built here; the text says why, and what to do."""


def _sources() -> list[Path]:
    endings = ("*.pyx", "*.h")
    mine = [path for ending in endings for path in HERE.glob(ending)]
    return [*mine, *(ROOT / "fd_postproc" / "headers").iterdir(), ROOT / "fd_postproc" / "_core.pxd"]


def _is_current(name: str) -> bool:
    built = HERE / f"{name}{EXTENSION_SUFFIXES[0]}"
    return built.exists() and built.stat().st_mtime >= max(path.stat().st_mtime for path in _sources())


def ensure() -> None:
    """Build what is missing or old, once, however many ask at the same time.

    Raises
    ------
    NotBuilt
        If Cython, setuptools or a compiler is missing, or the compiler fails.
    """
    if all(map(_is_current, NAMES)):
        return
    with open(HERE / "extensions.py") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in NAMES if not _is_current(name)]
        if not missing:
            return
        print(f"benchmarks: building {' and '.join(missing)}, once", file=sys.stderr, flush=True)
        temporary = ROOT / "build" / "benchmarks"
        temporary.mkdir(parents=True, exist_ok=True)
        # Compilers do not run with a sanitizer's library loaded into them.
        done = subprocess.run(
            [sys.executable, "-c", BUILD, str(ROOT), str(temporary), *missing],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NotBuilt(
            f"{' and '.join(missing)} cannot be built: {''.join(last)} (needs gcc, python3-dev, and: "
            "pip install '.[bench]')"
        )


if __name__ == "__main__":
    try:
        ensure()
    except NotBuilt as reason:
        sys.exit(f"benchmarks: {reason}")
