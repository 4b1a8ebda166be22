"""Runs a module of this package in a second Python process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def python_command(module: str, *arguments: str) -> list[str]:
    """Command line that runs `module` as a program with this process's import path.

    ``python -m`` would look in the working directory first, and that may be a checkout, whose sources have
    no extension modules beside them.
    """
    code = (
        f"import runpy, sys; sys.path[:] = {sys.path!r}; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, *arguments]


def answer_of(module: str, *, mark: str, patience: float, settings: dict[str, str]) -> dict[str, Any]:
    """Run a program of this package, with more environment variables; return what it prints after `mark`.

    That is one line of JSON.  It has a mark because libraries that the program imports may print, too.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes longer than `patience` seconds.
    ValueError
        If it ends without an answer; the text contains its last line on standard error.
    """
    child = subprocess.run(
        python_command(module),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
    )
    for line in reversed(child.stdout.splitlines()):
        if line.startswith(mark):
            answer: dict[str, Any] = json.loads(line.removeprefix(mark))
            return answer
    last = (child.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    status = child.returncode
    if status < 0:
        raise ValueError(f"signal {-status} ended the child process (9: dmesg, is memory short?): {last}")
    raise ValueError(f"the child process ended with status {status}: {last}")
