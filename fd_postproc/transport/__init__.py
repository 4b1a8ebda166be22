"""Transport from a Sender to a Receiver over an address, in place of a System V queue.

It moves the bytes of compact frames, each as one ZeroMQ message, and keeps nothing: what a broken
connection has lost is told by the numbers in the frames.  All else (gate, checksums, counters) stays
above it.  Nothing here is imported until an address is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .addresses import Address, parse
from .curve import Curve

if TYPE_CHECKING:
    from .inlet import Inlet
    from .outlet import Outlet

__all__ = ["Address", "Curve", "Dropped", "open_inlet", "open_outlet", "parse"]


class Dropped(NamedTuple):
    """A dropped message: ``"length"`` and its bytes, or ``"parts"`` and 2 (for several)."""

    field: str
    value: int


def open_outlet(address: str, hwm: int, linger: float, curve: Curve | None) -> Outlet:
    """Open the sending end of an address; it raises the same errors as `Sender`."""
    from .outlet import Outlet

    return Outlet(parse(address), hwm, linger, curve)


def open_inlet(address: str, mode: int, longest: int, curve: Curve | None) -> Inlet:
    """Open the receiving end of an address; `longest` is the limit of a frame in bytes."""
    from ..checks import permission_bits

    where, mode = parse(address, bind=True), permission_bits(mode)
    if curve is not None:
        from .keyed_inlet import KeyedInlet

        return KeyedInlet(where, longest, curve)
    from .plain_inlet import PlainInlet

    return PlainInlet(where, mode, longest)
