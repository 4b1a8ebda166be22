"""A long step over FastDeploy's ZeroMQ road in several frames, each of which is made when it can be sent.

With the log-probabilities of a vocabulary a step has hundreds of megabytes.  Whole, it would be there once as
a frame, once as its pickle and once in the socket, in both processes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..._core import _tokens_bytes
from ..stream_frames import Content, packed

PIECE_BYTES = 4 << 20
"""Of a frame; a slot that has more is a frame of its own.  The copying of some MiB takes longer than what is
done once a frame, and whatever exists at once - frame, pickle, those on their way - stays below 64 MiB."""
MOST_ON_THE_WAY = 2
"""Messages that wait in a socket, on each side, once steps go in pieces."""

RUNNER_LOOP, RUNNER_QUEUE, RUNNER_CLIENT = "_async_output_busy_loop", "async_output_queue", "zmq_client"


class Runner(NamedTuple):
    """By what FastDeploy's model runner sends steps over ZeroMQ.

    Attributes
    ----------
    queue : queue.Queue
        What its thread sends.
    socket : zmq.Socket or None
        By which it does; only that thread may use it.
    """

    queue: Any
    socket: Any

    @classmethod
    def found(cls) -> Runner:
        """Those of this process.

        Raises
        ------
        RuntimeError
            If this process has none, or several.
        """
        runners = {}
        for thread in threading.enumerate():
            target = getattr(thread, "_target", None)
            runner = getattr(target, "__self__", None)
            queue = getattr(runner, RUNNER_QUEUE, None)
            if getattr(target, "__name__", "") == RUNNER_LOOP and queue is not None:
                runners[id(queue)] = cls(queue, getattr(getattr(runner, RUNNER_CLIENT, None), "socket", None))
        if len(runners) != 1:
            raise RuntimeError(
                f"{len(runners)} threads of this process run {RUNNER_LOOP}, by which FastDeploy's model "
                "runner sends steps over ZeroMQ: speculative decoding's cannot be sent there; unset "
                "FD_USE_GET_SAVE_OUTPUT_V1"
            )
        return runners.popitem()[1]

    def wait_for_room(self) -> None:
        """Wait, in the thread that sends, until the socket takes a message: FastDeploy gives up after 3 s."""
        zmq = sys.modules.get("zmq")
        if self.socket is None or zmq is None:
            return
        if self.socket.getsockopt(zmq.SNDHWM) != MOST_ON_THE_WAY:
            self.socket.setsockopt(zmq.SNDHWM, MOST_ON_THE_WAY)
        self.socket.poll(None, zmq.POLLOUT)


class Piece:
    """A frame that is packed when FastDeploy's thread pickles it; what arrives are its bytes.

    Parameters
    ----------
    content : Content or bytes
        Or a short frame, packed already.
    runner : Runner
    """

    def __init__(self, content: Content | bytes, runner: Runner) -> None:
        self._content, self._runner = content, runner

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self._runner.wait_for_room()
        content = self._content
        return bytes, (content if isinstance(content, bytes) else packed(content),)


def cut(content: Content) -> list[Content]:
    """The step in pieces of at most `PIECE_BYTES`, at borders of slots; itself, if it is not longer."""
    if content.tokens is None:  # of a pooling model: one vector a request
        return [content]
    sizes = list(_sizes(content))
    if sum(sizes) <= PIECE_BYTES:
        return [content]
    tokens, begins, room = _tokens_bytes(content.tokens), [0], PIECE_BYTES
    for slot, size in enumerate(sizes):
        if size > room and slot > begins[-1]:
            begins.append(slot)
            room = PIECE_BYTES
        room -= size
    return [
        _part(content, tokens, begin, end)
        for begin, end in zip(begins, [*begins[1:], content.slots], strict=True)
    ]


def _sizes(content: Content) -> Iterator[int]:
    """Bytes of each slot in a frame."""
    n_rows, columns = (0, 0) if content.rows is None else content.rows[0].shape
    masks = content.masks
    for slot in range(content.slots):
        prompt = content.prompts.get(slot)
        yield (
            8
            + (8 * columns + 4) * (slot < n_rows)
            + (0 if masks is None or slot >= len(masks) else 8 + 4 * len(masks[slot]))
            + (0 if prompt is None else 32 + 12 * prompt[0].size + 8 * prompt[2].size)
        )


def _part(content: Content, tokens: bytes, begin: int, end: int) -> Content:
    import numpy as np

    return Content(
        end - begin,
        np.frombuffer(tokens, np.int64)[begin:end],
        content.rows,
        None if content.masks is None else content.masks[begin:end],
        {slot - begin: rows for slot, rows in content.prompts.items() if begin <= slot < end},
        span=(begin, content.slots),
        row=begin,
        weights=content.weights,
    )
