"""Runs a module of this package in a second Python process."""

from __future__ import annotations

import sys


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
