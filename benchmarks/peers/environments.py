"""A virtual environment for each engine, from the pinned requirements in ``requirements/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT = ROOT / "build" / "peers"
ENGINES = ("fastdeploy", "vllm", "sglang")


class NotInstalled(Exception):
    """An engine's environment could not be made; the text is the end of what pip said."""


def python_of(engine: str, folder: Path) -> Path:
    """The interpreter of an engine's environment."""
    return folder / f"peers-{engine}" / "bin" / "python"


def requirements(engine: str) -> Path:
    """The pinned requirements of an engine."""
    return HERE / "requirements" / f"{engine}.txt"


def make(engine: str, folder: Path) -> Path:
    """Make an engine's environment, unless it is there with the same requirements.

    Returns
    -------
    Path
        Its interpreter.

    Raises
    ------
    NotInstalled
    """
    python, wanted = python_of(engine, folder), requirements(engine).read_text()
    made = python.parents[1] / "requirements.txt"
    if made.is_file() and made.read_text() == wanted:
        return python
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(python.parents[1])],
        [str(python), "-m", "pip", "install", "--no-compile", "-q", "-r", str(requirements(engine))],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise NotInstalled(f"{engine}: {done.stderr.strip()[-500:]}")
    made.write_text(wanted)
    return python
