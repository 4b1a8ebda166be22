"""Splits a long step over FastDeploy's ZeroMQ transport into frames that are packed when sent.

With the log-probabilities of a vocabulary a step has hundreds of megabytes.  Whole, it would be there once as
a frame, once as its pickle and once in the socket, in both processes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..stream_frames import Content, packed

PIECE_BYTES = 4 << 20
"""Maximum bytes per frame; a larger slot gets its own frame.  The copying of some MiB takes longer than what
is done once a frame, and whatever exists at once - frame, pickle, those on their way - stays below 64 MiB."""
MOST_ON_THE_WAY = 2
"""Limit of waiting messages in a socket, on each side, once steps are split."""

RUNNER_LOOP, RUNNER_QUEUE, RUNNER_CLIENT = "_async_output_busy_loop", "async_output_queue", "zmq_client"


class Runner(NamedTuple):
    """The parts of FastDeploy's model runner that send steps over ZeroMQ."""

    queue: Any  # what its thread sends
    socket: Any  # by which it does; only that thread may use it

    @classmethod
    def found(cls) -> Runner:
        """Find those of this process; RuntimeError if it has none, or several."""
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
        """Wait in the sending thread for room in the socket: FastDeploy gives up after 3 s."""
        zmq = sys.modules.get("zmq")
        if self.socket is None or zmq is None:
            return
        if self.socket.getsockopt(zmq.SNDHWM) != MOST_ON_THE_WAY:
            self.socket.setsockopt(zmq.SNDHWM, MOST_ON_THE_WAY)
        self.socket.poll(None, zmq.POLLOUT)


class FramePiece:
    """Frame that is packed when FastDeploy's thread pickles it; the receiver gets bytes.

    A short frame is bytes, packed already.
    """

    def __init__(self, content: Content | bytes, runner: Runner) -> None:
        self._content, self._runner = content, runner

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self._runner.wait_for_room()
        content = self._content
        return bytes, (content if isinstance(content, bytes) else packed(content),)


def cut(content: Content) -> list[Content]:
    """Split the step at slots into pieces of at most `PIECE_BYTES`; a short one stays whole."""
    if content.tokens is None:  # of a pooling model: one vector a request
        return [content]
    sizes = list(_sizes(content))
    if sum(sizes) <= PIECE_BYTES:
        return [content]
    begins, room = [0], PIECE_BYTES
    for slot, size in enumerate(sizes):
        if size > room and slot > begins[-1]:
            begins.append(slot)
            room = PIECE_BYTES
        room -= size
    # FastDeploy's worker uses the memory of its tokens again, before the last piece is made.
    whole = content._replace(tokens=np.array(content.tokens, np.int64).ravel())
    borders = pairwise([*begins, content.slots])
    return [whole._replace(span=(begin, end - begin)) for begin, end in borders]


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
