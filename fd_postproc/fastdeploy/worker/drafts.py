"""Accepted tokens of speculative decoding over FastDeploy's ZeroMQ road, which has nothing for them itself.

FastDeploy's worker calls its save ops for such a step whatever ``FD_USE_GET_SAVE_OUTPUT_V1`` says.  Ours,
which stand in their place, make a frame then and give it to the thread that FastDeploy's model runner has for
its other steps.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

from ..._core import _op_frame, host_flag, host_input
from ...environment import DRAFTS
from ...errors import UnfitNumber
from ...layout import GPU, Layout
from ...ops.arguments import check_flag, check_sizes, say
from ...ops.environment import message_id, peer_understands
from ...ops.table import OpSpec
from ...tensors import ROLES
from ..stream_frames import Content, packed
from .streams import _on_host, numbering

RUNNER_LOOP, RUNNER_QUEUE = "_async_output_busy_loop", "async_output_queue"


def engine_wants_drafts() -> bool:
    """Whether the engine's process has said that accepted tokens are to come through the socket."""
    return peer_understands(DRAFTS)


def runner_queue() -> Any:
    """The queue of the thread by which FastDeploy's model runner sends steps over ZeroMQ.

    Raises
    ------
    RuntimeError
        If this process has none, or several.
    """
    found = {}
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        queue = getattr(getattr(target, "__self__", None), RUNNER_QUEUE, None)
        if getattr(target, "__name__", "") == RUNNER_LOOP and queue is not None:
            found[id(queue)] = queue
    if len(found) != 1:
        raise RuntimeError(
            f"{len(found)} threads of this process run {RUNNER_LOOP}, by which FastDeploy's model runner "
            "sends steps over ZeroMQ: speculative decoding's cannot be sent there; unset "
            "FD_USE_GET_SAVE_OUTPUT_V1"
        )
    return found.popitem()[1]


class DraftOp:
    """A save op's calls as frames in the model runner's queue.

    Parameters
    ----------
    name : str
    spec : OpSpec
    """

    def __init__(self, name: str, spec: OpSpec) -> None:
        self._name, self._spec = name, spec
        self._roles = [(role, spec.place(argument)) for role, argument in spec.roles.items()]
        self._stop = spec.place("not_need_stop")
        self._flag = spec.place("message_flag") if "message_flag" in spec.parameters else -1
        skips = [place for place, name in enumerate(spec.parameters) if name.startswith("skip_")]
        self._skip = skips[0] if skips else -1
        self._queue: Any = None

    def __call__(self, args: tuple[Any, ...]) -> None:
        """Send what the op was called with.

        Raises
        ------
        RuntimeError
            If FastDeploy's model runner has no queue.
        TypeError, ValueError
            If a tensor or a number in it does not fit; nothing was sent.
        """
        if self._queue is None:
            self._queue = runner_queue()
        self._queue.put(self.frame(args))

    def frame(self, args: tuple[Any, ...]) -> bytes:
        """The frame of a call."""
        names = self._spec.roles
        inputs: dict[str, Any] = {
            role: host_input(_on_host(args[place]), names[role], ROLES[role]) for role, place in self._roles
        }
        batch, width, rows, cols = check_sizes(self._name, inputs)
        goes_on, number = host_flag(_on_host(args[self._stop]), "not_need_stop"), message_id()
        made = _op_frame(
            self._name, inputs, batch, cols, width, rows, _layout(batch, cols),
            stop_flag=number if goes_on else -number,
            flag=check_flag(args[self._flag]) if self._flag >= 0 else 0,
            skip_prefill=self._skip >= 0 and bool(args[self._skip]),
        )  # fmt: skip
        if not isinstance(made, bytes):
            raise UnfitNumber(say(self._name, width, cols, made))
        sender, number = numbering.next()
        return packed(Content(batch, compact=made, sender=sender, number=number))


@lru_cache(maxsize=64)
def _layout(batch: int, cols: int) -> Layout:
    """No queue's limits hold here: neither of requests nor of columns."""
    return Layout(max(GPU.max_batch, batch), max(GPU.top_k, cols - 1), GPU.max_draft)
