"""Files that a command reads: by name, a pipe, or ``-`` for standard input."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import IO

STANDARD = "-"
"""The argument that means standard input, or output."""


def open_input(name: str) -> IO[bytes]:
    """Open a file for reading, from its start and in any order.

    What cannot be read twice (a pipe, a FIFO, a process substitution) is first read to its end, into a file
    without a name, which only this user can read and which goes with the process.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    source: IO[bytes] = os.fdopen(os.dup(0), "rb") if name == STANDARD else open(name, "rb")  # noqa: SIM115
    if source.seekable() and source.tell() == 0:
        return source
    with source:
        spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(source, spool, 1 << 20)
    spool.seek(0)
    return spool


def name_of(name: str) -> str:
    """What a file is called in messages to the user."""
    return "standard input" if name == STANDARD else name


def binary_output() -> int:
    """A file descriptor of standard output that takes bytes.

    Raises
    ------
    OSError
        If it is a terminal: a recording's bytes would only mess it up.
    """
    if os.isatty(1):
        raise OSError(None, "standard output is a terminal: redirect it to a file or a pipe")
    sys.stdout.flush()
    return os.dup(1)
