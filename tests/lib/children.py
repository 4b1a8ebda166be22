"""Starting other Python processes from a test."""

import sys
from pathlib import Path

from tests.lib import sanitized_forks

FD_POSTPROC = str(Path(sys.executable).with_name("fd-postproc"))
"""The installed program."""
kept = set()
"""Process ids of children that live as long as the session."""


def python(code, *arguments):
    """Command that runs code with this process's import path; ``-c`` alone would import from the checkout."""
    begin = f"import sys; sys.path[:] = {sys.path!r}\n"
    if sanitized_forks.wanted():
        begin += "from tests.lib import sanitized_forks; sanitized_forks.install()\n"
    code = begin + code
    return [sys.executable, "-c", code, *map(str, arguments)]
