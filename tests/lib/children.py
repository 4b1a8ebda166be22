"""Starting other Python processes from a test."""

import os
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


def forked(work):
    """Run something in a child process; its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def ended(child):
    """A child's exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_child(work, *arguments):
    """Run something in a child process to its end."""
    assert ended(forked(lambda: work(*arguments))) == 0
