"""Files that a command reads: by name, from a pipe, or ``-`` for standard input."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from typing import IO

from .._core import CHANNELS
from ..flight.codes import MAGIC
from ..flight.files import temporary_folder
from ..flight.reading import LONGEST_FILE, FlightError, MessageEntry, is_flight, parse
from ..recording import RecordingError, RecordingWriter
from ..support.environment import FLIGHT_TOKENS

STANDARD = "-"
"""The argument that means standard input, or output."""

closed: set[str] = set()
"""Which of ``stdout`` and ``stderr`` the shell had closed; they lead to /dev/null."""


def open_input(name: str) -> IO[bytes]:
    """Open a file for reading, from its start and in any order.

    What cannot be read twice (a pipe, a FIFO, a process substitution) is first read to its end, into a file
    without a name, which only this user can read and which goes with the process.  A flight recorder's file
    becomes a recording, likewise.

    Raises
    ------
    OSError
        If it cannot be read.
    RecordingError
        If it is a flight recorder's file that holds no messages.
    """
    try:
        source: IO[bytes] = os.fdopen(_input(), "rb") if name == STANDARD else open(name, "rb")  # noqa: SIM115
    except OSError as error:
        kind = {errno.ENXIO: "a socket: name a file or a pipe", errno.EISDIR: "a folder: name a file in it"}
        if error.errno not in kind:
            raise
        raise OSError(None, f"it is {kind[error.errno]}", name) from None
    try:
        return _from_its_start(source, name)
    except OSError as error:  # of a read or a write, which do not know the name
        source.close()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        where = temporary_folder() if is_full else name_of(name)
        raise OSError(error.errno, error.strerror, where) from None


def _from_its_start(source: IO[bytes], name: str) -> IO[bytes]:
    if not (source.seekable() and source.tell() == 0):
        with source:
            spool: IO[bytes] = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115
            shutil.copyfileobj(source, spool, 1 << 20)
        spool.seek(0)
        source = spool
    if is_flight(source.read(len(MAGIC))):
        with source:
            return _recording_of(source, name)
    source.seek(0)
    return source


def _input() -> int:
    """A file descriptor of standard input; OSError if it is closed, or a terminal."""
    try:
        if not os.isatty(0):
            return os.dup(0)
        state = "a terminal"
    except OSError:
        state = "closed"
    raise OSError(None, f"standard input is {state}: redirect a file or a pipe to it") from None


def _recording_of(source: IO[bytes], name: str) -> IO[bytes]:
    """The messages of a flight recorder's file, as a recording without a name."""
    source.seek(0)
    try:
        flight = parse(source.read(LONGEST_FILE), name_of(name))
    except FlightError as error:
        raise RecordingError(str(error)) from None
    messages = [entry for entry in flight.entries if isinstance(entry, MessageEntry) and entry.mtype > 0]
    if not messages:
        raise RecordingError(f"{flight.name} holds no messages: {FLIGHT_TOKENS}=1 in the engine keeps them")
    made: IO[bytes] = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115
    channel = next((name for name in CHANNELS if name == flight.channel), None)
    began = flight.began_ns - int(1e9 * flight.began)
    with RecordingWriter(os.dup(made.fileno()), channel, created_ns=flight.began_ns) as writer:
        for message in messages:
            # A time may be any number, where the file is damaged.
            time_ns = min(max(began + int(1e9 * message.at), -(1 << 63)), (1 << 63) - 1)
            writer.write(message.payload, message.mtype, time_ns)
    made.seek(0)
    return made


def name_of(name: str) -> str:
    """The name of a file in messages to the user."""
    return "standard input" if name == STANDARD else name


def binary_output() -> int:
    """A file descriptor of standard output for bytes; OSError if it is closed, or a terminal."""
    if "stdout" in closed:
        raise OSError(None, "standard output is closed: redirect it to a file or a pipe, or name a file")
    if os.isatty(1):
        raise OSError(None, "standard output is a terminal: redirect it to a file or a pipe")
    sys.stdout.flush()
    return os.dup(1)
