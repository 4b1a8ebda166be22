"""Templates of chunks: what a stream's chunks have in common.

In its steady state a stream's chunks differ in a text, a time, log-probabilities and counts.  A chunk is made
with values that stand nowhere else, by the calls that the lane makes; what is around them is the template.
Its first use is the chunk that FastDeploy has made: if the bytes are not the same, it is dropped.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from ...environment import STREAM_INTERVAL
from .answer_text import AnswerText
from .chunks._chunks import ARRIVAL, COUNT, LOGPROBS, TEXT, TOTAL, FloatStyle, Premises, SteadyStream, note
from .chunks.model_fields import NotPlain, float_style
from .detokenising import decode_token
from .parsers import STREAMED

STAYS = "a stream's chunks are made of its results"

KNOWN_NAMES = frozenset(
    {
        "dict", "get", "getattr", "isinstance", "process_response_dict_normal",
        "process_response_dict_streaming",
    }
)  # fmt: skip
"""Names that FastDeploy's ``process_response_dict`` may use."""

A_TEXT, A_COUNT, A_TIME = "fd_postproc: the place of the text", 876543210123, 1234.0625
"""Values that stand nowhere else in a chunk."""


@functools.cache
def style() -> FloatStyle:
    """How streams print floats."""
    known = float_style()
    if known is None:
        raise NotPlain("pydantic prints floats in none of the ways known here")
    return known


def steady_of(lane: Any, result: Any, chunk: str) -> SteadyStream | None:
    """The stream for chunks that are written from the engine's message; None if none may be.

    Parameters
    ----------
    lane : Lane
    result : dict
        The last result, processed.
    chunk : str
        FastDeploy's chunk of it.
    """
    try:
        return _steady_of(lane, result, chunk)
    except Exception as reason:
        note(f"{STAYS}: {reason if isinstance(reason, NotPlain) else type(reason).__name__}")
        return None


def _steady_of(lane: Any, result: Any, chunk: str) -> SteadyStream:
    request = lane.request
    if len(lane.starts) != 1 or request.return_token_ids or request.collect_metrics:
        raise NotPlain("it has several choices, or shows more than texts")
    if lane.requests.premises is None:
        lane.requests.premises = premises_of(lane, list(result["outputs"]["token_ids"]))
    parts, slots, canned, with_logprobs = template_of(lane, result)
    stream = SteadyStream(
        lane, lane.requests.premises, parts, slots,
        build=lane.builder() if LOGPROBS in slots else None, prompt=lane.prompt,
        end_of_audio=lane.end_of_audio, audio=lane.audio, drafts=bool(request.include_draft_logprobs),
    )  # fmt: skip
    outputs = result["outputs"]
    arrival = result["metrics"]["engine_recv_latest_token_time"] - lane.starts[0]
    if stream.chunk(outputs["text"], arrival, outputs["top_logprobs"], lane.counts[0]) != chunk.encode():
        raise NotPlain("its template makes another chunk")
    time = lane.starts[0] + A_TIME - lane.starts[0]
    if LOGPROBS in slots and stream.chunk(A_TEXT, time, canned, A_COUNT) != with_logprobs.encode():
        raise NotPlain("its log-probabilities are written in another way")
    return stream


def premises_of(lane: Any, ids: list[int]) -> Premises:
    """What all streams of a server take for granted, after a look at its data processor.

    Raises
    ------
    NotPlain
        If its results are more than texts of tokens.
    """
    client, processor = lane.client, lane.processor
    cls = type(processor)
    views_of = getattr(getattr(cls, STREAMED), "views_of", None)
    ways_of = getattr(cls.ids2tokens, "ways_of", None)
    more = {*cls.process_response_dict.__code__.co_names} - KNOWN_NAMES
    if views_of is None or ways_of is None or more or "process_response_dict" in vars(processor):
        raise NotPlain("its data processor is not known")
    views = views_of(processor)
    if views.chunk is processor or any(parser is not None for parser in views.made_for[:2]):
        raise NotPlain("a parser reads its texts")
    tokenizer = processor.tokenizer
    ways = ways_of(tokenizer)
    if not ways.is_quick:
        raise NotPlain("its tokenizer is not known")
    new_text = ways.new_text or functools.partial(decode_token, ways.decode)
    name = "fd_postproc-steady_0"
    outputs: dict[str, Any] = {"token_ids": ids}
    try:
        processor.process_response_dict(
            {"request_id": name, "finished": False, "outputs": outputs},
            stream=True,
            include_stop_str_in_output=False,
        )
    finally:
        processor.decode_status.pop(name, None)
    text = new_text([*ids], 0, 0)[0]
    expected = {"text": text, "skipped": False, "tool_calls": None, "reasoning_content": ""}
    if {key: outputs.get(key, ...) for key in expected} != expected:
        raise NotPlain("its data processor makes more of a result than its text")

    def hold() -> bool:
        return (
            not client.check_model_weight_status()
            and views_of(processor) is views
            and ways_of(tokenizer) is ways
        )

    try:
        interval = STREAM_INTERVAL.value
    except ValueError as error:
        note(str(error))
        interval = None
    return Premises(hold, lane.requests, processor.decode_status, new_text, AnswerText, style(), interval)


def template_of(lane: Any, result: Any) -> tuple[list[bytes], list[int], Any, str]:
    """The parts of a stream's chunks, the values between them, and a chunk with log-probabilities.

    Raises
    ------
    NotPlain
        If a value's place is not clear.
    """
    start = lane.starts[0]
    outputs = result["outputs"] | {
        "text": A_TEXT, "skipped": False, "reasoning_content": "", "tool_calls": None, "top_logprobs": None,
        "draft_top_logprobs": None,
    }  # fmt: skip
    canned = [[[outputs["token_ids"][0]]], [[-0.5]], [1]]
    metrics = {"engine_recv_latest_token_time": start + A_TIME}
    marked = result | {"outputs": outputs, "metrics": metrics}
    counted, lane.counts[0] = lane.counts[0], A_COUNT
    try:
        chunk = lane.chunk(marked)
        outputs["top_logprobs"] = canned
        with_logprobs = lane.chunk(marked)
    finally:
        lane.counts[0] = counted
    found = [
        _place(chunk, TEXT, json.dumps(A_TEXT)),
        _place(chunk, ARRIVAL, style().text(metrics["engine_recv_latest_token_time"] - start)),
    ]
    if lane.with_usage:
        found += [_place(chunk, COUNT, str(A_COUNT)), _place(chunk, TOTAL, str(A_COUNT + lane.prompt))]
    if with_logprobs != chunk:
        at = next(i for i, (one, other) in enumerate(zip(chunk, with_logprobs, strict=False)) if one != other)
        if not (chunk.startswith("null", at) and with_logprobs.endswith(chunk[at + 4 :])):
            raise NotPlain("the place of its log-probabilities is not clear")
        found.append((at, at + 4, LOGPROBS))
    found.sort()
    begins = [0, *(end for _, end, _ in found)]
    ends = [*(begin for begin, _, _ in found), len(chunk)]
    parts = [chunk[begin:end].encode() for begin, end in zip(begins, ends, strict=True)]
    return parts, [slot for _, _, slot in found], canned, with_logprobs


def _place(chunk: str, slot: int, value: str) -> tuple[int, int, int]:
    """Where a value begins and ends, and which it is."""
    if chunk.count(value) != 1:
        raise NotPlain("the place of a value is not clear")
    begin = chunk.index(value)
    return begin, begin + len(value), slot
