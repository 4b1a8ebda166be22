"""An address on the command line, in the place of a queue: frames as raw messages."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from .._core import payload_size
from ..layout import GPU
from ..transport import ROOM, Address, open_inlet, open_outlet, parse
from .queue_io import QUEUE_HELP, QueueName, Room, queue_name
from .terminal import CommandError

HELP = f"{QUEUE_HELP}; or an address: ipc:///path, tcp://host:port"

_HWM = 256
_TAKE_S = 0.05
_FRAME = 2  # the type that compact frames have in a queue, and in a recording
_LAST_S = 60.0


def listening(text: str) -> QueueName | Address:
    """A queue, or an address to receive at."""
    return _address(text, bind=True) if "://" in text else queue_name(text)


def connecting(text: str) -> QueueName | Address:
    """A queue, or an address to send to."""
    return _address(text, bind=False) if "://" in text else queue_name(text)


def listening_address(text: str) -> Address:
    """An address to receive at, and nothing else."""
    return _address(text, bind=True)


def _address(text: str, bind: bool) -> Address:
    try:
        return parse(text, bind=bind)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def room() -> Room:
    """One message of an address holds any frame."""
    most = 1 << 26
    return Room(most, most)


class Source:
    """What comes to an address, with the methods of `queue_io.RawQueue` that take."""

    msqid = -1
    waiting = 0

    def __init__(self, address: Address) -> None:
        self._inlet = open_inlet(address.text, 0o600, payload_size("spec_topk", GPU), None)
        self.name = self._inlet.address

    def take(self) -> tuple[bytes, int] | None:
        """The next message and its type; None if none comes for a while."""
        found = self._inlet.take(_TAKE_S)
        if found is None:
            return None
        message, begin = found
        return bytes(memoryview(message)[begin:]), _FRAME

    def put(self, payload: bytes, mtype: int) -> bool:
        """Nothing can be put back."""
        return False

    def close(self) -> None:
        self._inlet.close()


class Sink:
    """An address that messages are sent to, with the method of `queue_io.RawQueue` that puts."""

    msqid = -1

    def __init__(self, address: Address, timeout: float | None) -> None:
        self.name = address.text
        self._outlet = open_outlet(address.text, _HWM, _LAST_S if timeout is None else timeout, None)

    def put_waiting(self, payload: bytes, mtype: int, timeout: float | None) -> None:
        """Send a frame; waits while it is full.

        Raises
        ------
        CommandError
            If it stays full for `timeout` seconds; None: never.
        """
        frame = bytearray(ROOM) + payload
        if not self._outlet.put(frame) and not self._outlet.put_waiting(frame, timeout):
            raise CommandError(f"{self.name}: {self._outlet.trouble}")

    def finish(self) -> int:
        """Wait until all has been taken, or the time is over; how many were not."""
        return self._outlet.close(True)


@contextlib.contextmanager
def sink(address: Address, timeout: float | None) -> Iterator[Sink]:
    """A Sink that waits at the end for what is on its way."""
    one = Sink(address, timeout)
    try:
        yield one
    except BaseException:
        one._outlet.close(False)
        raise
    if lost := one.finish():
        raise CommandError(f"{lost:,} of the last messages were not taken at {address.text} in time")
