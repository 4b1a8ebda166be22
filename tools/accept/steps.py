"""What a script of steps for both classes is made of: requests and messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fd_postproc._core import TARGET, has_counts, has_logprobs
from fd_postproc.core.codes import Code
from fd_postproc.core.layout import Channel

END = 2  # the end token of every request
PREEMPTED, RECOVERY, NOTHING = (int(code) for code in (Code.PREEMPTED, Code.RECOVERY_STOP, Code.NO_TOKEN))


@dataclass(frozen=True)
class CannedMessage:
    """Content of one message, slot by slot.

    Attributes
    ----------
    slots : tuple of (int or tuple of int)
        A code, or the accepted tokens.
    columns : int
        Logprob columns.
    flag : int
        Message type on `spec_topk`.
    preempted, aborted, stopped : tuple of int
        Slots whose request is to be queued again, is to be aborted, or was stopped from outside, before the
        message arrives.
    """

    slots: tuple[int | tuple[int, ...], ...]
    columns: int = 1
    flag: int = TARGET
    preempted: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Script:
    """A token processor's configuration, its requests and its messages.

    Attributes
    ----------
    name : str
        What it is about, for a log line.
    channel : str
    requests : tuple of (dict or None)
        One for each slot: what differs from an ordinary request (`fakes.make_task`); None: an empty slot.
    messages : tuple of CannedMessage
    role, method, v1, adapter, draft_logprobs, masks, experts, decode_log, caching
        Splitwise role; speculative method; the V1 scheduler; the internal adapter; draft logprobs; sampling
        masks; routed experts in results; whether a scheduler metrics logger is set; output caching.
    transfers : dict of int to str
        How a slot's cache transfer ends on a prefill instance.
    storage : bool
        Whether the cache goes through a storage, where the build knows that.
    streamed : bool
        Whether messages come as objects (``FD_USE_GET_SAVE_OUTPUT_V1``).
    """

    name: str
    channel: Channel
    requests: tuple[dict[str, Any] | None, ...]
    messages: tuple[CannedMessage, ...]
    role: str = "mixed"
    method: str = "mtp"
    v1: bool = True
    adapter: bool = False
    draft_logprobs: bool = False
    masks: bool = False
    experts: bool = False
    decode_log: bool = False
    caching: bool = False
    transfers: dict[int, str] = field(default_factory=dict)
    storage: bool = False
    streamed: bool = False

    @property
    def speculative(self) -> bool:
        return has_counts(self.channel)

    @property
    def logprobs(self) -> bool:
        return has_logprobs(self.channel)


FIRST: dict[str, Any] = {"fresh": True}
RICH: dict[str, Any] = {
    "fresh": True,
    "messages": ["a prompt"],
    "multimodal_inputs": {"num_input_image_tokens": 3, "num_input_video_tokens": 5},
    "num_cached_tokens": 64,
    "ic_req_data": {"id": 1},
    "status": "RUNNING_PREFILL",
}
RUNNING: dict[str, Any] = {}
SECOND: dict[str, Any] = {"counter": 1}
CHUNKED: dict[str, Any] = {"fresh": True, "prefill_chunk_info": [1, 1]}
POOLING: dict[str, Any] = {"fresh": True, "pooling_params": True}
IN_PAIR: dict[str, Any] = {"disaggregate_info": {"role": "decode", "transfer_protocol": "ipc"}}
PREFILL: dict[str, Any] = {
    "fresh": True,
    "disaggregate_info": {"role": "prefill", "transfer_protocol": "ipc"},
}
