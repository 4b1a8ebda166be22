"""Arrays in one process -> nested lists of Python numbers in another, ``[request][token][column]``.

The timed process sends; a second one, ``python -m`` with this module, receives, makes the lists and says so.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import sysv_ipc

from fd_postproc._core import Receiver, Sender

from .built import _floor
from .cases import HEADLINE, Case, Channel, Comparison, Ready, Unavailable, check, tensors_of
from .peer import Peer, back_to_back, each_awaited, serve
from .queued import fits

ABOUT = "arrays in one process -> nested lists in another; each awaited: the answer's way back is in the time"
REFERENCE = "floor"
BASELINE = "FastDeploy restated"

Send = Callable[[], Any]
Receive = Callable[[], Any]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def comparisons(quick: bool) -> Iterator[Comparison]:
    few = (
        "fd_postproc",
        BASELINE,
        "sysv_ipc + struct",
        "pyzmq ipc, pickle of arrays",
        "floor",
    )
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE:
        for in_turn in (True,) if quick else (True, False):
            contenders = {way: partial(_make, case, way, in_turn) for way in (few if quick else WAYS)}
            yield Comparison(
                f"{case}, {'each awaited' if in_turn else 'back to back'}",
                contenders,
                rounds=2 if quick else 0,
            )


def nested(counts: Any, *parts: Any) -> tuple[list, ...]:
    """Rows of all requests in turn -> lists by request."""
    bounds = list(pairwise(np.concatenate(([0], np.cumsum(counts))).tolist()))
    return tuple([part[a:b] for a, b in bounds] for part in parts)


class Link(NamedTuple):
    """What both ends know.

    Attributes
    ----------
    case : Case
    queue : sysv_ipc.MessageQueue
        A private queue.
    path : str
        A private path for a socket.
    undo : contextlib.ExitStack
        Closes what this end opened.
    """

    case: Case
    queue: sysv_ipc.MessageQueue
    path: str
    undo: contextlib.ExitStack

    @property
    def arrays(self) -> Arrays:
        """Counts, ids, scores, ranks."""
        step = self.case.step()
        shape = (step.rows, step.cols)
        return (
            np.array(step.counts, np.int32),
            np.array(step.ids).reshape(shape),
            np.array(step.scores).reshape(shape),
            np.array(step.ranks),
        )

    def socket(self, kind: str) -> Any:
        """One end of a pyzmq socket over a Unix socket."""
        try:
            zmq = importlib.import_module("zmq")
        except ModuleNotFoundError:
            raise Unavailable("needs pyzmq: pip install pyzmq") from None
        socket = self.undo.enter_context(zmq.Context()).socket(getattr(zmq, kind))
        self.undo.callback(socket.close)
        socket.setsockopt(zmq.LINGER, 0)
        (socket.bind if kind == "PUSH" else socket.connect)(f"ipc://{self.path}")
        return socket


# ---- Ways: the sending end, and the receiving end ---------------------------------------------------------


def _send_ours(link: Link) -> Send:
    sender = Sender(link.case.channel, key=link.queue.key, dialect="compact")
    return partial(sender.send_arrays, *link.arrays)


def _receive_ours(link: Link) -> Receive:
    receive = Receiver(link.case.channel, key=link.queue.key).receive

    def call() -> Any:
        step = receive()
        assert step is not None
        return step.tolists()

    return call


def _send_stock(link: Link) -> Send:
    return _floor.Stock(link.case.channel, link.case.inputs(), link.queue.id).save


def _receive_stock(link: Link) -> Receive:
    """FastDeploy makes lists of all six positions of every slot; counts are read with NumPy here."""
    tensors, cols = tensors_of(link.case.channel), link.case.columns
    get = _floor.StockGet(link.case.channel, tensors, link.queue.id, True).get
    tokens, scores, ranks = tensors

    def call() -> Any:
        get()
        batch = int(tokens[2])
        used, slots = 126 * batch, (batch, 6, 21)
        all_ids = tokens[515 : 515 + used].reshape(slots)[:, :, :cols].tolist()
        all_scores = scores[:used].reshape(slots)[:, :, :cols].tolist()
        all_ranks = ranks[: 6 * batch].reshape(batch, 6).tolist()
        counts = tokens[3 : 3 + batch].tolist()
        return tuple(
            [part[:n] for part, n in zip(parts, counts, strict=True)]
            for parts in (all_ids, all_scores, all_ranks)
        )

    return call


def _send_struct(link: Link) -> Send:
    """Counts, ids, scores and ranks one behind the other."""
    counts, ids, scores, ranks = link.arrays
    header, send = struct.Struct("=3i"), link.queue.send
    shape = (len(counts), len(ids), ids.shape[1])

    def call() -> None:
        parts = (counts.tobytes(), ids.tobytes(), scores.tobytes(), ranks.tobytes())
        send(header.pack(*shape) + b"".join(parts))

    return call


def _receive_struct(link: Link) -> Receive:
    receive = link.queue.receive

    def call() -> Any:
        payload, _ = receive()
        batch, rows, cols = struct.unpack_from("=3i", payload)
        numbers = rows * cols
        flat = struct.unpack_from(f"={batch}i{numbers}i{numbers}f{rows}i", payload, 12)
        starts = range(batch, batch + numbers, cols)
        ids = [list(flat[at : at + cols]) for at in starts]
        scores = [list(flat[at + numbers : at + numbers + cols]) for at in starts]
        return nested(flat[:batch], ids, scores, list(flat[batch + 2 * numbers :]))

    return call


def _send_pickled_arrays(link: Link) -> Send:
    arrays, send = link.arrays, link.socket("PUSH").send
    return lambda: send(pickle.dumps(arrays, 5))


def _receive_pickled_arrays(link: Link) -> Receive:
    receive = link.socket("PULL").recv

    def call() -> Any:
        counts, *parts = pickle.loads(receive())
        return nested(counts, *(part.tolist() for part in parts))

    return call


def _lists(arrays: Arrays) -> tuple[list, ...]:
    counts, *parts = arrays
    return nested(counts, *(part.tolist() for part in parts))


def _send_pickled_lists(link: Link) -> Send:
    arrays, send = link.arrays, link.socket("PUSH").send
    return lambda: send(pickle.dumps(_lists(arrays), 5))


def _receive_pickled_lists(link: Link) -> Receive:
    receive = link.socket("PULL").recv
    return lambda: pickle.loads(receive())


def _msgspec() -> Any:
    try:
        return importlib.import_module("msgspec.msgpack")
    except ModuleNotFoundError:
        raise Unavailable("needs msgspec: pip install msgspec") from None


def _send_msgspec(link: Link) -> Send:
    arrays, send, encode = link.arrays, link.socket("PUSH").send, _msgspec().Encoder().encode
    return lambda: send(encode(_lists(arrays)))


def _receive_msgspec(link: Link) -> Receive:
    kind = tuple[list[list[list[int]]], list[list[list[float]]], list[list[int]]]
    receive, decode = link.socket("PULL").recv, _msgspec().Decoder(kind).decode
    return lambda: decode(receive())


def _orjson() -> Any:
    try:
        return importlib.import_module("orjson")
    except ModuleNotFoundError:
        raise Unavailable("needs orjson: pip install orjson") from None


def _send_orjson(link: Link) -> Send:
    """As lists: float32 arrays it would write with fewer digits, and other numbers would come out."""
    arrays, send, dumps = link.arrays, link.socket("PUSH").send, _orjson().dumps
    return lambda: send(dumps(_lists(arrays)))


def _receive_orjson(link: Link) -> Receive:
    loads, receive = _orjson().loads, link.socket("PULL").recv
    return lambda: loads(receive())


def _send_floor(link: Link) -> Send:
    return _floor.Putter(link.case.message(full=False, dialect="compact"), 2, link.queue.id).put


def _receive_floor(link: Link) -> Receive:
    """The lists are made from arrays that were there before."""
    payload = link.case.message(full=False, dialect="compact")
    wait = _floor.Drain(link.queue.id, len(payload)).wait
    make = _floor.Lists(link.case.step()).make

    def call() -> Any:
        wait()
        return make()

    return call


WAYS: dict[str, tuple[Callable[[Link], Send], Callable[[Link], Receive]]] = {
    "fd_postproc": (_send_ours, _receive_ours),
    BASELINE: (_send_stock, _receive_stock),
    "sysv_ipc + struct": (_send_struct, _receive_struct),
    "pyzmq ipc, pickle of arrays": (_send_pickled_arrays, _receive_pickled_arrays),
    "pyzmq ipc, pickle of lists": (_send_pickled_lists, _receive_pickled_lists),
    "pyzmq ipc, msgspec": (_send_msgspec, _receive_msgspec),
    "pyzmq ipc, orjson": (_send_orjson, _receive_orjson),
    "floor": (_send_floor, _receive_floor),
}


# ---- The two processes ------------------------------------------------------------------------------------


def _make(case: Case, way: str, in_turn: bool) -> Ready:
    fits(len(case.message()))
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)
    folder = tempfile.TemporaryDirectory(prefix="fd_postproc_bench_")
    with contextlib.ExitStack() as undo:
        link = Link(case, queue, os.path.join(folder.name, "socket"), undo)
        undo.callback(folder.cleanup)
        undo.callback(queue.remove)
        send = WAYS[way][0](link)
        peer = Peer(
            __name__, case.channel, case.batch, case.accepted, case.columns, way, queue.key, link.path
        )
        undo.callback(peer.close)
        peer.expect(1, 1)
        send()
        check(peer.answer(), "other lists were made")
        close = undo.pop_all().close
    return Ready((each_awaited if in_turn else back_to_back)(peer, send), close=close)


def main(channel: Channel, batch: str, accepted: str, columns: str, way: str, key: str, path: str) -> None:
    """Receive lists for a `Peer`."""
    case = Case(channel, int(batch), int(accepted), int(columns))
    queue = sysv_ipc.MessageQueue(int(key), max_message_size=1 << 20)
    lists = case.step().tolists()

    def right(got: Any, last: bool) -> bool:
        return tuple(got) == lists if last else len(got[0]) == case.batch

    with contextlib.ExitStack() as undo:
        serve(WAYS[way][1](Link(case, queue, path, undo)), right, queue.remove)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
