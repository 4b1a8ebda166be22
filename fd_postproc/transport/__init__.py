"""The way from a Sender to a Receiver where it is not a System V queue: an address selects it.

System V's part of Sender and Receiver is C (`headers/sysv.h`, `headers/lane.h`).  Another transport is two
classes of Python: what `Outlet` and `Inlet` say is all that the Sender and the Receiver use of it.  The
compact frames, their gate, checksums, numbers and counters stay above it, and are the same for all.

Nothing here is imported until somebody gives an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .addresses import Address, parse
from .curve import Curve

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Address", "Curve", "Inlet", "Outlet", "open_inlet", "open_outlet", "parse"]

ROOM = 32
"""Bytes that an `Outlet` wants in front of each frame, for what it says of it."""


class Outlet(Protocol):
    """The sending end.  One thread at a time calls it, and it may have threads of its own."""

    def put(self, frame: bytearray) -> bool:
        """Take over a frame, which begins after `ROOM` bytes; false if it is full.  Does not wait."""

    def put_waiting(self, frame: bytearray, timeout: float | None) -> bool:
        """The same, waiting without the GIL while it is full; false once `timeout` seconds have passed."""

    @property
    def unacknowledged(self) -> int:
        """Frames that were put in and that no receiver has taken yet."""

    @property
    def trouble(self) -> str:
        """Why it is full, for a person: the limit, and whether a receiver is there."""

    def again(self) -> Outlet:
        """Another one like it, for the child of a fork."""

    def close(self, wait: bool) -> int:
        """End; `wait` for what is on its way as long as it may take.  Frames that are lost."""


class Inlet(Protocol):
    """The receiving end.  One thread at a time takes from it; any may close it."""

    @property
    def address(self) -> str:
        """Where senders find it."""

    @property
    def descriptor(self) -> int:
        """A file descriptor that becomes readable when `take` may have something."""

    def take(self, timeout: float | None) -> tuple[Any, int] | None:
        """The next message: an object with the buffer protocol, and where in it the frame begins.

        None once `timeout` seconds have passed (None: never), or after `close`.  Waits without the GIL and
        without polling; signal handlers run.  A message that was handed out is gone for good: no other
        receiver gets it.
        """

    def close(self) -> None:
        """End, and wake the thread that waits.  Senders keep what was not taken."""


def open_outlet(address: str, hwm: int, linger: float, curve: Curve | None) -> Outlet:
    """The sending end of an address.  Raises QueueError, TypeError and ValueError as `Sender` does."""
    from .zmq_outlet import ZmqOutlet

    return ZmqOutlet(parse(address), hwm, linger, curve)


def open_inlet(address: str, mode: int, longest: int, curve: Curve | None) -> Inlet:
    """The receiving end of an address; `longest`: bytes of the longest frame that may come."""
    from .zmq_inlet import ZmqInlet

    return ZmqInlet(parse(address, bind=True), mode, longest, curve)


def __dir__() -> Sequence[str]:
    return __all__
