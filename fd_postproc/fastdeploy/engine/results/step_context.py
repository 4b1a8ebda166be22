"""The batch loop's input besides the message: a step's requests, and what it may do itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence
from typing import Any, NamedTuple


class SteadyMode(NamedTuple):
    """Options of the batch loop when it advances requests itself."""

    now: float  # seconds, by FastDeploy's clock
    tokens_counter: Any  # of the requests; the loop counts on in it
    templates: list[Any]  # by slot, of its request's results; kept by the loop
    metrics: Any  # FastDeploy's, whose samples the loop sums up; None: `record` is called for each request
    record: Callable[[Any, float, list[int]], Any]  # FastDeploy's _record_metrics
    decode_log: Callable[[int], None] | None  # the scheduler's log, given a whole step at once
    log_decoding: Callable[[Any, int], None] | None  # the same, given each request
    decode_role: bool  # an instance that others prefill for
    dropped: tuple[Collection[str], ...]  # requests whose tokens are not sent: preempted and aborted ones
    steps_of: dict[str, int] | None  # FastDeploy's tables of acceptance, by request; None without speculation
    heads_of: dict[str, list[int]] | None
    most_heads: int
    streamed: bool  # the step came over ZeroMQ, whose results say less (`streamed`)


class Context(NamedTuple):
    """Context of one step for the batch loop."""

    stop_flags: MutableSequence[bool]  # by slot; other threads change both at any time
    tasks: MutableSequence[Any]
    output_type: int
    masks: dict[int, Any]  # sampling masks by slot
    steady: SteadyMode | None  # None: every request has to be looked at closely
