"""Canned steps for both classes: every channel, and every course of a request.

Left out on purpose is what FastDeploy's class does wrong and ours does not (docs/fastdeploy.md, "What is
different for a client"): results there differ and should.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fd_postproc._core import DRAFT, TARGET, has_counts, has_logprobs
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

_LIFE = (RICH, RUNNING, RUNNING, None, RUNNING, RUNNING, RUNNING, RUNNING, RUNNING)


def _tokens(*rows: int | tuple[int, ...]) -> tuple[int | tuple[int, ...], ...]:
    return rows


_SAMPLED = (
    # first token; goes on; ends; empty; stopped; recovers; nothing; preempted; aborted
    CannedMessage(
        _tokens((11,), (12,), (END,), (13,), (14,), RECOVERY, NOTHING, PREEMPTED, PREEMPTED),
        columns=3,
        preempted=(7,),
        aborted=(8,),
        stopped=(4,),
    ),
    CannedMessage(_tokens((21,), (22,)), columns=1),
    CannedMessage(_tokens((END,), (32,)), columns=21),
)
_ACCEPTED = (
    CannedMessage(
        _tokens((11, 12), (13, 14, 15), (16, END, 17), (13,), (14,), (18,), 0, PREEMPTED, PREEMPTED),
        columns=3,
        preempted=(7,),
        aborted=(8,),
        stopped=(4,),
    ),
    CannedMessage(_tokens((21,), (22, 23), 0, 0, 0, RECOVERY), columns=1),
    CannedMessage(_tokens((31, END), (32,)), columns=21),
)
_PAIR = (
    CannedMessage(_tokens((11,), (12,), (13,), (END,), (14,)), columns=2),
    CannedMessage(_tokens((21,), (22,), (23,), 0, (24,)), columns=2, preempted=(1,), aborted=(2,)),
    CannedMessage(_tokens((31,), 0, 0, 0, (34,)), columns=2),
)
_PAIR_ACCEPTED = (
    CannedMessage(_tokens((11, 12), (13,), (14, 15), (16, END), (17, 18)), columns=2),
    CannedMessage(_tokens((21,), (22,), (23,), 0, (24, 25)), columns=2, preempted=(1,), aborted=(2,)),
    CannedMessage(_tokens((31,), 0, 0, 0, (34,)), columns=2),
)
_DECODE = (SECOND | IN_PAIR, IN_PAIR, IN_PAIR, IN_PAIR, RUNNING)
_TRANSFERS = {0: "finished", 1: "failed"}

_PREFILL = Script(
    "plain tokens, prefill role",
    "plain",
    (PREFILL, PREFILL, RUNNING),
    (CannedMessage(_tokens((11,), (12,), (13,))),),
    role="prefill",
    transfers=_TRANSFERS,
)
_PREFILL_ACCEPTED = Script(
    "speculation, prefill role",
    "spec",
    (PREFILL, PREFILL),
    (CannedMessage(_tokens((11, 12), (13,)), columns=2),),
    role="prefill",
    transfers=_TRANSFERS,
)
_MASKED = Script(
    "logprobs, sampling masks",
    "topk",
    (FIRST, RUNNING),
    (CannedMessage(_tokens((11,), (END,)), columns=2), CannedMessage(_tokens((21,)), columns=2)),
    masks=True,
    experts=True,
)

SCRIPTS: tuple[Script, ...] = (
    Script("plain tokens", "plain", _LIFE, _SAMPLED, decode_log=True, caching=True),
    Script(
        "plain tokens, V0 scheduler",
        "plain",
        (*_LIFE[:7], CHUNKED),
        (
            CannedMessage(
                _tokens((11,), (12,), (END,), (13,), (14,), RECOVERY, NOTHING, (18,)), stopped=(4,)
            ),
            CannedMessage(_tokens((21,), (END,), 0, 0, 0, 0, 0, (28,))),
        ),
        v1=False,
    ),
    Script("plain tokens, decode role", "plain", _DECODE, _PAIR, role="decode"),
    _PREFILL,
    replace(_PREFILL, name="plain tokens, prefill role, cache through a storage", storage=True),
    Script("logprobs", "topk", _LIFE, _SAMPLED),
    Script("logprobs, internal adapter", "topk", _LIFE, _SAMPLED, adapter=True),
    _MASKED,
    Script("logprobs, decode role", "topk", _DECODE, _PAIR, role="decode"),
    Script("speculation", "spec", _LIFE, _ACCEPTED, decode_log=True),
    Script("speculation, ngram", "spec", _LIFE, _ACCEPTED, method="ngram", adapter=True),
    Script(
        "speculation, V0 scheduler",
        "spec",
        (*_LIFE[:7], CHUNKED),
        (
            CannedMessage(_tokens((11, 12), (13,), (16, END), (1,), (1,), (17,), 0, (18,)), stopped=(4,)),
            CannedMessage(_tokens((21,), (22, END), 0, 0, 0, RECOVERY, 0, (28, 29))),
        ),
        v1=False,
    ),
    Script("speculation, decode role", "spec", _DECODE, _PAIR_ACCEPTED, role="decode"),
    _PREFILL_ACCEPTED,
    Script("speculation with logprobs", "spec_topk", _LIFE, _ACCEPTED),
    replace(_PREFILL_ACCEPTED, name="speculation with logprobs, prefill role", channel="spec_topk"),
    Script(
        "speculation with draft logprobs",
        "spec_topk",
        (RICH, RUNNING),
        (
            CannedMessage(_tokens((11, 12), (13,)), columns=3),
            CannedMessage(_tokens((14, 15), (16,)), columns=3, flag=DRAFT),
            CannedMessage(_tokens((21,), (22, 23)), columns=2),
            CannedMessage(_tokens((24,), (25,)), columns=2, flag=DRAFT),
            CannedMessage(_tokens((31,), (END,)), columns=2),
        ),
        draft_logprobs=True,
    ),
)

_STREAM = (
    # first token; goes on; ends; empty; stopped; nothing; preempted; aborted
    CannedMessage(
        _tokens((11,), (12,), (END,), (13,), (14,), NOTHING, PREEMPTED, PREEMPTED),
        columns=3,
        preempted=(6,),
        aborted=(7,),
        stopped=(4,),
    ),
    CannedMessage(_tokens((21,), (22,)), columns=1),
    CannedMessage(_tokens((END,), (32,)), columns=50),
)
_STREAM_LIFE = (RICH, RUNNING, RUNNING, None, RUNNING, RUNNING, RUNNING, RUNNING)
_STREAM_PAIR = (
    CannedMessage(_tokens((11,), (12,), (13,), (END,), (14,)), columns=2),
    CannedMessage(_tokens((21,), (22,), (23,), NOTHING, (24,)), columns=2, preempted=(1,), aborted=(2,)),
    CannedMessage(_tokens((31,), NOTHING, NOTHING, NOTHING, (34,)), columns=2),
)

STREAMED_SCRIPTS: tuple[Script, ...] = (
    Script("objects", "plain", _STREAM_LIFE, _STREAM, streamed=True),
    Script(
        "objects, V0 scheduler",
        "plain",
        (RICH, RUNNING, SECOND),
        (CannedMessage(_tokens((11,), (12,), (END,))), CannedMessage(_tokens((21,), (END,), NOTHING))),
        v1=False,
        streamed=True,
    ),
    Script("objects, decode role", "plain", _DECODE, _STREAM_PAIR, role="decode", streamed=True),
    replace(_PREFILL, name="objects, prefill role", streamed=True),
    Script("objects with logprobs", "topk", _STREAM_LIFE, _STREAM, streamed=True),
    replace(_MASKED, name="objects with logprobs, sampling masks", experts=False, streamed=True),
    Script("objects with logprobs, decode role", "topk", _DECODE, _STREAM_PAIR, role="decode", streamed=True),
    Script(
        "objects of a pooling model",
        "plain",
        (POOLING, RUNNING | POOLING, None, POOLING),
        (CannedMessage(((), (), NOTHING)),),
        streamed=True,
    ),
)
"""The same for steps that come as objects.

A recovery stop is left out: FastDeploy's class never ends the request.
"""
