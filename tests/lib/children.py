"""Starting other Python processes from a test."""

import sys
from pathlib import Path

FD_POSTPROC = str(Path(sys.executable).with_name("fd-postproc"))
"""The installed program."""


def python(code, *arguments):
    """Command that runs code with this process's import path; ``-c`` alone would import from the checkout."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n{code}"
    return [sys.executable, "-c", code, *map(str, arguments)]
