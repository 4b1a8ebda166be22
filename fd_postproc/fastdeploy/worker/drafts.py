"""Accepted tokens of speculative decoding over ZeroMQ, which FastDeploy itself does not support.

FastDeploy's worker calls its save ops for such a step whatever ``FD_USE_GET_SAVE_OUTPUT_V1`` says.  Ours,
which stand in their place, make a frame then and give it to the thread that FastDeploy's model runner has for
its other steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..._core import _op_message, host_flag, host_input
from ...core.layout import GPU, Layout
from ...core.tensors import ROLES, on_host
from ...errors import UnfitNumber
from ...ops.arguments import check_flag, check_sizes, say
from ...ops.environment import message_id, peer_understands
from ...ops.table import OpSpec
from ...support.environment import DRAFTS
from .split_frames import Runner
from .stream_builder import numbering


def engine_wants_drafts() -> bool:
    """Whether the engine's process accepts accepted tokens through the socket."""
    return peer_understands(DRAFTS)


class DraftOp:
    """Save op that puts its step, as a compact frame, into the model runner's queue."""

    _queue: Any = None

    def __init__(self, name: str, spec: OpSpec) -> None:
        self._name, self._spec = name, spec

    def __call__(self, args: tuple[Any, ...]) -> None:
        """Send the arguments of the op's call.

        Raises
        ------
        RuntimeError
            If FastDeploy's model runner has no queue.
        TypeError, ValueError
            If a tensor or a number in it does not fit; nothing was sent.
        """
        if self._queue is None:
            self._queue = Runner.found().queue
        self._queue.put(self.frame(args))

    def frame(self, args: tuple[Any, ...]) -> bytes:
        """Make the frame of a call."""
        sender, number = numbering.next()
        _, _, stop, flag, skip = self._spec.words
        inputs: dict[str, Any] = {
            role: host_input(on_host(args[at], name), name, ROLES[role])
            for role, name, at in self._spec.tensors
        }
        batch, width, rows, cols = check_sizes(self._name, inputs)
        goes_on, message = host_flag(on_host(args[stop], "not_need_stop"), "not_need_stop"), message_id()
        frame = _op_message(
            self._name, inputs, batch, cols, width, rows, _layout(batch, cols),
            stop_flag=message if goes_on else -message,
            flag=check_flag(args[flag]) if flag >= 0 else 0,
            skip_prefill=skip >= 0 and bool(args[skip]), sender=sender, number=number,
        )  # fmt: skip
        if not isinstance(frame, bytes):
            raise UnfitNumber(say(self._name, width, cols, frame))
        return frame


@lru_cache(maxsize=64)
def _layout(batch: int, cols: int) -> Layout:
    """Layout without a queue's limits on requests and columns."""
    return Layout(max(GPU.max_batch, batch), max(GPU.top_k, cols - 1), GPU.max_draft)
