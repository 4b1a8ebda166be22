"""FastDeploy's response class for streams: from the first chunk on, the dispatcher may write.

Each stream tries that first: a chunk of FastDeploy's, as uvicorn writes it, has to be ours byte by byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .. import seams
from .chunks._chunks import note
from .chunks.model_fields import NotPlain
from .http_response import HeldTransport, cycle_of, framed
from .lane import Lane
from .lane_chunks import LANES

STAYS = "a stream's chunks stay in its own task"

KNOWN_NAMES = frozenset(
    {
        "StreamingResponse", "bytes", "body_iterator", "charset", "encode", "isinstance", "memoryview",
        "raw_headers", "status_code",
    }
)  # fmt: skip
"""Names that Starlette's method may use."""


def lane_of(cycle: Any, body: Any) -> Lane:
    """The lane of a response whose first chunk was given, registered with the dispatcher.

    Raises
    ------
    NotPlain
        If its generator is not one that is known.
    """
    code = getattr(getattr(body, "ag_code", None), "co_name", "")
    if code != "wrapped_generator":
        raise NotPlain(f"its body is made by {code or type(body).__name__}")
    values = body.ag_frame.f_locals
    span, generator = values["span"], values["original_generator"]
    if span is not None and span.is_recording():
        raise NotPlain("tracing counts its chunks")
    kind = LANES.get(getattr(getattr(generator, "ag_code", None), "co_name", ""))
    if kind is None:
        raise NotPlain("its generator is not known")
    lane = kind(cycle, generator)
    lane.requests.lanes[lane.request_id] = lane
    return lane


def _compare(lane: Lane, result: Any, chunk: Any, written: bytes) -> None:
    """Raise `NotPlain` where FastDeploy's chunk has what ours has not."""
    lane.opened(lane.generator.ag_frame.f_locals)
    ours = lane.chunk(result)
    if ours is None or ours != chunk:
        raise NotPlain("FastDeploy's chunk is another")
    if framed(ours.encode()) != written:
        raise NotPlain("the server writes it in another way")


def install(module: Any) -> Callable[[], None]:
    """Install our response class for streams in the application; return a function that restores.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.openai.api_server``.

    Raises
    ------
    NotPlain
        If its response class does more than it is known to.
    """
    stock = module.StreamingResponse
    method = stock.stream_response
    more = sorted(set(method.__code__.co_names) - KNOWN_NAMES)
    if more:
        raise NotPlain(f"its response class looks at more: {', '.join(more)}")

    class StreamingResponse(stock):  # type: ignore[misc,valid-type]
        """FastDeploy's response class, whose chunks the dispatcher may write."""

        is_fd_postproc = True

        async def stream_response(self, send: Any) -> None:
            try:
                cycle = cycle_of(send)
            except Exception as error:
                _stays(error)
                await super().stream_response(send)
            else:
                await _stream(self, send, cycle)

    StreamingResponse.__name__, StreamingResponse.__qualname__ = stock.__name__, stock.__qualname__
    return seams.install("api lane", (module, "StreamingResponse", StreamingResponse))


def _stays(error: Exception) -> None:
    """Count why a stream's chunks stay."""
    note(f"{STAYS}: {error if isinstance(error, NotPlain) else type(error).__name__}")


async def _stream(response: Any, send: Any, cycle: Any) -> None:
    """Starlette's ``stream_response``, with a lane from the first chunk on."""
    headers = response.raw_headers
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    lane: Lane | None = None
    held: HeldTransport | None = None
    is_first = True
    try:
        async for chunk in response.body_iterator:
            body = chunk if isinstance(chunk, (bytes, memoryview)) else chunk.encode(response.charset)
            message = {"type": "http.response.body", "body": body, "more_body": True}
            if is_first:
                is_first = False
                try:
                    lane = lane_of(cycle, response.body_iterator)
                except Exception as error:
                    _stays(error)
            elif lane is not None:
                lane.release()
                lane.flush()
                if lane.trial is not None:
                    await _try(lane, send, message, chunk)
                    continue
                if lane.is_ending and held is None:
                    held = HeldTransport(cycle, asyncio.get_running_loop().call_soon)
            await send(message)
        if lane is not None:
            lane.release()
            lane.flush()
        if held is not None:
            held.is_last = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        if held is not None:
            held.release()
        if lane is not None:
            lane.close()


async def _try(lane: Lane, send: Any, message: Any, chunk: Any) -> None:
    """Send FastDeploy's chunk; if ours would be the same on the wire, the next ones are."""
    result, lane.trial = lane.trial, None
    held = HeldTransport(lane.cycle)
    try:
        await send(message)
        written = b"".join(held.parts)
    finally:
        held.release()
    try:
        _compare(lane, result, chunk, written)
        lane.open(result, chunk)
    except Exception as error:
        _stays(error)
        lane.is_single = False
