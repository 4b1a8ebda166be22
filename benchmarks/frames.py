"""The cost of sending a compact frame in fragments, between two processes.

The timed process sends; a second one receives and says through a pipe when it has everything.  ``python -m``
with this module is that second process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import sysv_ipc

from fd_postproc._core import Receiver, Sender, Step
from fd_postproc.queues import kernel_limits

from .cases import Case, Channel, Comparison, Dialect, Ready, Unavailable, check
from .peer import Peer, back_to_back, each_awaited, serve

ABOUT = "one step from a sending process to a receiving one, by what one message may hold"
REFERENCE = "one message"

# kernel.msgmax and kernel.msgmnb.  A queue of 4 MiB lets the sender run ahead by several messages without
# filling the caches with those that wait.
_BIG = (1 << 20, 4 << 20)
_WAYS: dict[str, tuple[Dialect, tuple[int, int]]] = {
    "one message": ("compact", _BIG),
    "fragments of 8192": ("compact", (8192, 16384)),  # a new kernel's limits
    "fragments of 4096": ("compact", (4096, 16384)),
    "fragments of 8136": ("compact", (8136, 16384)),  # fill two pages, with the kernel's own headers
    "fragments of 4048": ("compact", (4048, 16384)),  # one page
    "one packed message": ("packed", _BIG),
}
_QUICK = tuple(_WAYS)[:3]
_LARGE = Case(batch=512, accepted=6)


def comparisons(quick: bool) -> Iterator[Comparison]:
    ways = _QUICK if quick else tuple(_WAYS)
    yield _comparison(Case(), ways, in_turn=False)
    if not quick:
        yield _comparison(_LARGE, ways, in_turn=False)
    yield _comparison(Case(), ways, in_turn=True)
    if not quick:
        yield _comparison(_LARGE, ways, in_turn=True)


def _comparison(case: Case, ways: tuple[str, ...], in_turn: bool) -> Comparison:
    return Comparison(
        f"{case}, {'each awaited' if in_turn else 'back to back'}",
        {way: partial(_make, case, *_WAYS[way], in_turn) for way in ways},
        {way: _WAYS[way][1] for way in ways},
    )


def _make(case: Case, dialect: Dialect, limits: tuple[int, int], in_turn: bool) -> Ready:
    now = kernel_limits()
    if (now.msgmax, now.msgmnb) != limits:
        raise Unavailable(
            f"needs msgmax {limits[0]} and msgmnb {limits[1]} (here {now.msgmax} and {now.msgmnb}) in an IPC "
            "namespace of its own, which could not be made: run as root"
        )
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600)
    step = case.step()
    sender = Sender(case.channel, key=queue.key, dialect=dialect)
    peer = Peer(__name__, *shape_of(case), queue.key)
    try:
        peer.expect(1, 1)
        sender.send(step)
        check(peer.answer(), "another step came out")
    except BaseException:
        queue.remove()
        peer.close()
        raise

    def close() -> None:
        queue.remove()
        peer.close()

    ways = each_awaited if in_turn else back_to_back
    run = ways(peer, partial(sender.send, step))
    return Ready(run, len(case.message(full=False, dialect=dialect)), close=close)


def shape_of(case: Case) -> tuple[str, int, int, int]:
    """A case for a command line."""
    return case.channel, case.batch, case.accepted, case.columns


def main(channel: Channel, batch: str, accepted: str, columns: str, key: str) -> None:
    """Receive steps for a `Peer`."""
    right = Case(channel, int(batch), int(accepted), int(columns)).step()
    receiver = Receiver(channel, key=int(key))

    def is_right(step: Step | None, last: bool) -> bool:
        return step == right if last else step is not None and step.rows == right.rows

    serve(receiver.receive, is_right, receiver.remove)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
