"""Addresses on the command line in place of queues: frames as raw messages."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from .._core import payload_size
from ..layout import GPU
from ..transport import Address, Dropped, open_inlet, open_outlet, parse
from .queue_io import QUEUE_HELP, QueueName, Room, queue_name
from .tables import plural
from .terminal import CommandError, note

HELP = f"{QUEUE_HELP}; or an address: ipc:///path, tcp://host:port"

_HWM = 256
_TAKE_S = 0.05
_FRAME = 2  # the type that compact frames have in a queue, and in a recording
_LAST_S = 60.0


def listening(text: str) -> QueueName | Address:
    """Find a queue, or open an address to receive at."""
    return _address(text, bind=True) if "://" in text else queue_name(text)


def connecting(text: str) -> QueueName | Address:
    """Find a queue, or open an address to send to."""
    return _address(text, bind=False) if "://" in text else queue_name(text)


def listening_address(text: str) -> Address:
    """Open an address to receive at."""
    return _address(text, bind=True)


def _address(text: str, bind: bool) -> Address:
    try:
        return parse(text, bind=bind)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def room() -> Room:
    """Limits of an address: one message holds any frame."""
    most = 1 << 26
    return Room(most, most)


class Source:
    """Source of an address's messages, with the receiving methods of `queue_io.RawQueue`."""

    msqid = -1
    waiting = 0

    def __init__(self, address: Address) -> None:
        self._inlet = open_inlet(address.text, 0o600, payload_size("spec_topk", GPU), None)
        self.name = self._inlet.address

    def take(self) -> tuple[bytes, int] | None:
        """Take the next message and its type; None if none comes for a while."""
        found = self._inlet.take(_TAKE_S)
        self._inlet.found = None
        if found is None:
            return None
        if isinstance(found, Dropped):
            note(f"{self.name}: a message that is no frame was dropped ({found.field} {found.value:,})")
            return None
        return bytes(found), _FRAME

    def put(self, payload: bytes, mtype: int) -> bool:
        """Put nothing back: an address does not support that."""
        return False

    def close(self) -> None:
        self._inlet.close()


class Sink:
    """Destination of messages at an address, with the sending method of `queue_io.RawQueue`."""

    msqid = -1

    def __init__(self, address: Address, timeout: float | None) -> None:
        self.name, self.sent = address.text, 0
        self._linger = _LAST_S if timeout is None else timeout
        self._outlet = open_outlet(address.text, _HWM, self._linger, None)

    def put_waiting(self, payload: bytes, mtype: int, timeout: float | None) -> None:
        """Send a frame; wait while the address is full.

        Raises
        ------
        CommandError
            If it stays full for `timeout` seconds; None: never.
        """
        if not self._outlet.put(payload, timeout):
            raise CommandError(f"{self.name}: {self._outlet.trouble}")

    def finish(self, wait: bool = True) -> tuple[int, str]:
        """Wait until all is sent, or the time is over; return the number unsent, and why."""
        return self._outlet.close(self._linger if wait else 0.0)


@contextlib.contextmanager
def sink(address: Address, timeout: float | None, total: int) -> Iterator[Sink]:
    """Open a Sink that waits for unsent messages, and reports how many of `total` it sent."""
    one = Sink(address, timeout)
    lost, why, wait = 0, "", False
    try:
        yield one
        wait = True
    finally:
        lost, why = one.finish(wait=wait)
        were = "was" if total == 1 else "were"
        note(f"{one.sent - lost:,} of {plural(total, 'message')} {were} sent to {one.name}.")
    if lost:
        raise CommandError(f"{lost:,} of the last messages were not sent to {one.name} in time: {why}")
