"""Chunks that are written to their connections by the dispatcher, past the tasks of their streams.

A stream's generator waits at its queue, all of its chunks before are written, and the next result asks for
nothing but one more chunk: then the chunk is made where the result arrives, by the same calls that the
generator would make, and goes to the connection's transport at once.  No future is set, and no task runs.
The generator goes on waiting.  What it counts are lists in its frame, and they are kept up to date, so at
any time it can take over: it gets every result that is not ordinary.

Each stream tries this first: a chunk of FastDeploy's, as uvicorn writes it, has to be ours byte by byte.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from typing import Any

from ...environment import LANE, is_on
from .. import seams
from .chunks._chunks import OUTPUT_KEYS, RESULT_KEYS, SteadyStream, note, set_steady
from .chunks.model_fields import NotPlain
from .connections import NoResults, RequestMap
from .steady import steady_of

STAYS = "a stream's chunks stay in its own task"

KNOWN_NAMES = frozenset(
    {
        "StreamingResponse", "bytes", "body_iterator", "charset", "encode", "isinstance", "memoryview",
        "raw_headers", "status_code",
    }
)  # fmt: skip
"""Names that Starlette's method may use."""

WRAPPERS = {
    ("starlette._exception_handler", "sender"): ("response_started", "send"),
    ("starlette.middleware.exceptions", "sender"): ("response_started", "send"),
    ("starlette.middleware.errors", "_send"): ("response_started", "send"),
}
"""Functions around the server's ``send`` that leave a body as it is, and their free variables."""

SERVERS = ("uvicorn.protocols.http.h11_impl", "uvicorn.protocols.http.httptools_impl")

SILENT_S = 9.0
"""Seconds of silence after which FastDeploy's generator gets the next result: it counts waits of 10."""


def cycle_of(send: Any) -> Any:
    """The server's object for a response, by the function that sends its parts.

    Raises
    ------
    NotPlain
        If something in between may change a body, or the server is not known.
    """
    while isinstance(send, types.FunctionType):
        code = send.__code__
        if WRAPPERS.get((send.__module__, code.co_name)) != code.co_freevars or code.co_names:
            raise NotPlain(f"{send.__module__} is between it and the connection")
        send = dict(zip(code.co_freevars, send.__closure__ or (), strict=True))["send"].cell_contents
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle).__module__ not in SERVERS or getattr(type(cycle), "send", None) is not send.__func__:
        raise NotPlain(f"the server's {type(cycle).__module__} is not known")
    if not all(hasattr(cycle, name) for name in ("transport", "disconnected")) or not hasattr(
        cycle.flow, "write_paused"
    ):
        raise NotPlain("the server's object is of another kind")
    return cycle


def framed(body: bytes) -> bytes:
    """A chunk of an HTTP body as it is on the wire."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class HeldTransport:
    """Transport of a response that collects what is written.

    Parameters
    ----------
    cycle : RequestResponseCycle
        Its attribute is this object until `release`.
    soon : callable, optional
        An event loop's ``call_soon``: what is collected is written in the loop's next turn at the latest.
    """

    def __init__(self, cycle: Any, soon: Callable[..., Any] | None = None) -> None:
        self.cycle, self.soon, self.transport = cycle, soon, cycle.transport
        self.parts: list[bytes] = []
        self.is_last = False
        cycle.transport = self

    def write(self, data: Any) -> None:
        """Collect; the last part of a response is written at once with all before it."""
        if not data:
            return
        if not self.parts and self.soon is not None:
            self.soon(self.flush)
        self.parts.append(bytes(data))
        if self.is_last:
            self.flush()

    def flush(self) -> None:
        """Write what is collected, in one call."""
        if self.parts:
            parts, self.parts = self.parts, []
            self.transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        self.flush()
        return getattr(self.transport, name)

    def release(self) -> None:
        """Write what is collected, and put the transport back."""
        self.flush()
        if self.cycle.transport is self:
            self.cycle.transport = self.transport


class Lane:
    """The way of one stream's chunks past its task; the dispatcher's queue for it.

    Parameters
    ----------
    cycle : RequestResponseCycle
        uvicorn's, of the response.
    generator : async generator
        FastDeploy's, suspended where it has given its first chunk.
    """

    code = ""
    """Name of the generator's code."""

    def __init__(self, cycle: Any, generator: Any) -> None:
        self.cycle, self.flow, self.generator = cycle, cycle.flow, generator
        frame = generator.ag_frame
        values = frame.f_locals
        self.names = frame.f_globals
        self.handler, self.request = values["self"], values["request"]
        self.client = self.handler.engine_client
        self.requests = self.client.connection_manager.request_map
        if type(self.requests) is not RequestMap:
            raise NotPlain("results come another way")
        self.queue, self.request_id = values["response_queue"], values["request_id"]
        self.items, self.waiters = self.queue._queue, self.queue._getters
        self.starts, self.tool_called = values["inference_start_time"], values["tool_called"]
        self.image_tokens = values["num_image_tokens"]
        self.choices_left = len(self.starts)
        self.is_single = is_on(LANE) and values["max_streaming_response_tokens"] == 1
        self.is_open = self.is_ending = False
        self.trial: Any = None  # the result of the next chunk, while none has been compared
        self.waiter: Any = None  # the future at which the generator waits since its last result
        self.given = 0.0  # the loop's time when it got that
        self.time = asyncio.get_running_loop().time
        self.pending: list[bytes] = []
        self.steady: SteadyStream | None = None
        self.steady_id = ""  # of its results, while they are written from the engine's message
        self.begin(values)

    processor: Any
    counts: Any
    reasoning: Any
    with_usage, end_of_audio, prompt = False, None, 0
    audio: Any = ()

    def begin(self, values: Any) -> None:
        """Take from the generator's frame what its kind of answer needs."""

    def open(self, result: Any, chunk: str) -> None:
        """Begin to write: FastDeploy's chunk was ours."""
        self.is_open = self.is_single
        stream = steady_of(self, result, chunk) if self.is_open else None
        if stream is not None:
            self.steady, self.steady_id = stream, result["request_id"]
            set_steady(self.steady_id, stream)

    def stop(self) -> None:
        """Write no more."""
        self.is_open = False
        self.vary()

    def vary(self) -> None:
        """Write no more from the engine's message: something changes that every chunk has."""
        if self.steady_id:
            self.release()
            set_steady(self.steady_id, None)
            self.steady, self.steady_id = None, ""

    def release(self) -> None:
        """Make a chunk of tokens that wait for others."""
        if self.steady is not None:
            self.steady.release()

    def put_nowait(self, group: Any) -> None:
        """Write a group of results, or put it into the queue."""
        self.release()
        if self.takes(group):
            if self.is_open:
                return self.write(group)
            self.trial = group[0] if len(group) == 1 else None
        else:
            self.trial = None
        self.flush()
        self.waiter, self.given = None, self.time()
        self.queue.put_nowait(group)
        return None

    def takes(self, group: Any) -> bool:
        """Whether the generator waits for a group, and each of its results is one more chunk."""
        try:
            for result in group:
                if result["finished"]:
                    self.choices_left -= 1
                    self.is_ending = self.choices_left <= 0
                elif result.get("error_code", 200) != 200:
                    self.is_ending = True
            if not self.is_single or not self.waiters or self.items:
                return False
            waiter = self.waiters[0]
            if self.waiter is not waiter:
                if self.waiter is not None or self.time() - self.given > SILENT_S or waiter.done():
                    return False  # it counts the silence, and begins again with a result
                self.waiter = waiter
            return (
                not waiter.done()
                and not self.cycle.disconnected
                and not self.flow.write_paused
                and not self.client.check_model_weight_status()
                and all(map(self.is_ordinary, group))
            )
        except Exception:
            return False  # something that only the generator can answer

    def is_ordinary(self, result: Any) -> bool:
        """Whether a result is one more chunk, and nothing else."""
        if type(result) is not dict or not result.keys() <= RESULT_KEYS.keys():
            return False
        outputs = result["outputs"]
        return (
            type(outputs) is dict
            and outputs.keys() <= OUTPUT_KEYS.keys()
            and not result["finished"]
            and result.get("error_code", 200) == 200
            and not outputs.get("decode_type")
            and outputs.get("send_idx") != 0
            and outputs.get("sampling_mask") is None
            and bool(outputs["token_ids"])
            and self.starts[self.index_of(result)] != 0
        )

    @staticmethod
    def index_of(result: Any) -> int:
        """The choice of a result."""
        return int(result["request_id"].rpartition("_")[2])

    def write(self, group: Any) -> None:
        """Write a group's chunks, as the generator would; what it would raise is raised there."""
        for result in group:
            try:
                text = self.advanced(result)
                body = None if text is None else framed(text.encode())
            except Exception as error:
                self.flush()
                self.stop()
                self.is_ending, self.waiter = True, None
                self.queue.put_nowait(NoResults(error))
                return
            if body is not None:
                self.pending.append(body)
        if self.pending:
            self.requests.write(self)

    def flush(self) -> None:
        """Write what is pending to the connection."""
        if self.pending:
            pending, self.pending = self.pending, []
            if not self.cycle.disconnected:
                self.cycle.transport.write(b"".join(pending))

    def close(self) -> None:
        """Leave the stream to its task, which has ended: nothing of ours may keep its generator."""
        if self.requests.lanes.get(self.request_id) is self:
            del self.requests.lanes[self.request_id]
        self.stop()
        self.is_single = False
        self.generator = self.trial = None

    def advanced(self, result: Any) -> str | None:
        """Process a result, count it, and make its chunk."""
        result = self.processed(result)
        index, output = self.index_of(result), result["outputs"]
        images, thoughts = output.get("num_image_tokens"), output.get("reasoning_token_num", 0)
        self.counts[index] += len(output["token_ids"]) + (images or 0)
        if images:
            self.image_tokens[index] += images
        self.reasoning[index] += thoughts
        if images or thoughts:
            self.vary()
        if output["tool_calls"] is not None:
            self.tool_called[index] = True
        return self.chunk(result)

    def processed(self, result: Any) -> Any:
        """A result with its text."""
        raise NotImplementedError

    def builder(self) -> Any:
        """From packed log-probabilities to what a chunk shows of them; None where it shows none."""
        raise NotImplementedError

    def chunk(self, result: Any) -> str | None:
        """The chunk of a processed result; None where it is skipped."""
        raise NotImplementedError


class ChatLane(Lane):
    """The way of a chat completion's chunks: the body of FastDeploy's loop."""

    code = "chat_completion_stream_generator"

    def begin(self, values: Any) -> None:
        answer = values["response_processor"]
        self.counts, self.reasoning = values["previous_num_tokens"], values["reasoning_num_tokens"]
        self.include_stop, self.with_usage = (
            values["include_stop_str_in_output"],
            values["include_continuous_usage"],
        )
        self.processor, self.end_of_audio, self.audio = (
            answer.data_processor,
            answer.eos_token_id,
            answer._audio_buffer,
        )
        if answer._is_async_processor or answer.enable_multimodal_content():
            raise NotPlain("its parts are more than text")

    def open(self, result: Any, chunk: str) -> None:
        self.opened(self.generator.ag_frame.f_locals)
        super().open(result, chunk)

    def opened(self, values: Any) -> None:
        """Take what the first results have set."""
        self.whole, self.prompt, self.cached = (
            values["chunk"],
            values["num_prompt_tokens"],
            values["num_cached_tokens"],
        )

    def is_ordinary(self, result: Any) -> bool:
        return (
            super().is_ordinary(result)
            and result["outputs"]["token_ids"][-1] != self.end_of_audio
            and not self.audio
        )

    def processed(self, result: Any) -> Any:
        return self.processor.process_response_dict(
            response_dict=result,
            stream=True,
            include_stop_str_in_output=self.include_stop,
            audio_tokens=None,
            tts=False,
            request=self.request,
        )

    def builder(self) -> Any:
        request, build = self.request, self.handler._create_chat_logprobs.builder_of(self.processor).build
        columns = request.top_logprobs if request.top_logprobs != -1 else self.client.ori_vocab_size
        return lambda top: build(top, True, columns, request.include_logprobs_decode_token)

    def chunk(self, result: Any) -> str | None:
        names, request, index, output = self.names, self.request, self.index_of(result), result["outputs"]
        arrival_time = result["metrics"]["engine_recv_latest_token_time"] - self.starts[index]
        logprobs = drafts = None
        top = output["top_logprobs"]
        if request.logprobs and top is not None:
            columns = request.top_logprobs if request.top_logprobs != -1 else self.client.ori_vocab_size
            make, decode = self.handler._create_chat_logprobs, request.include_logprobs_decode_token
            logprobs = make(top, request.logprobs, columns, decode)
            if request.include_draft_logprobs and output["draft_top_logprobs"] is not None:
                drafts = make(output["draft_top_logprobs"], request.logprobs, columns, decode)
        metrics = result["metrics"].get("speculate_metrics", None)
        if output["skipped"] and not request.return_token_ids:
            return None
        delta = names["DeltaMessage"](
            reasoning_content=output["reasoning_content"],
            tool_calls=output["tool_calls"],
            prompt_token_ids=None,
            completion_token_ids=None,
            completion_tokens=None,
        )
        delta.content = "" if output["skipped"] else (output["text"] or "")
        choice = names["ChatCompletionResponseStreamChoice"](
            index=index,
            delta=delta,
            logprobs=logprobs,
            draft_logprobs=drafts,
            sampling_mask=None,
            arrival_time=arrival_time,
            speculate_metrics=metrics,
        )
        whole = self.whole
        if request.collect_metrics:
            whole.metrics = result["metrics"]
        if request.return_token_ids:
            choice.delta.completion_token_ids = list(output["token_ids"])
            choice.delta.completion_tokens = output.get("completion_tokens")
        if self.with_usage:
            whole.usage = names["UsageInfo"](
                prompt_tokens=self.prompt,
                completion_tokens=self.counts[index],
                total_tokens=self.prompt + self.counts[index],
                prompt_tokens_details=names["PromptTokenUsageInfo"](cached_tokens=self.cached),
                completion_tokens_details=names["CompletionTokenUsageInfo"](
                    reasoning_tokens=self.reasoning[index], image_tokens=self.image_tokens[index]
                ),
            )
        whole.choices = [choice]
        return f"data: {whole.model_dump_json(exclude_unset=True)}\n\n"


class CompletionLane(Lane):
    """The way of a completion's chunks: the body of FastDeploy's loop."""

    code = "completion_stream_generator"

    def begin(self, values: Any) -> None:
        self.counts, self.reasoning = values["output_tokens"], values["reasoning_tokens"]
        self.cached, self.firsts = values["num_cache_tokens"], values["first_iteration"]
        self.created, self.model = values["created_time"], values["model_name"]
        self.processor = self.client.data_processor
        if self.handler._is_process_response_dict_async:
            raise NotPlain("its data processor waits")

    def is_ordinary(self, result: Any) -> bool:
        return super().is_ordinary(result) and not self.firsts[self.index_of(result)]

    def processed(self, result: Any) -> Any:
        self.processor.process_response_dict(
            result, stream=True, include_stop_str_in_output=self.request.include_stop_str_in_output
        )
        self.cached[self.index_of(result)] += result["outputs"].get("num_cache_tokens") or 0
        return result

    def builder(self) -> Any:
        request, build = (
            self.request,
            self.handler._create_completion_logprobs.builder_of(self.processor).build,
        )
        columns = request.logprobs if request.logprobs != -1 else self.client.ori_vocab_size
        return lambda top: build(top, columns)

    def chunk(self, result: Any) -> str | None:
        names, request, index, output = self.names, self.request, self.index_of(result), result["outputs"]
        arrival_time = result["metrics"]["engine_recv_latest_token_time"] - self.starts[index]
        logprobs = drafts = None
        top = output["top_logprobs"]
        if request.logprobs is not None and top is not None:
            columns = request.logprobs if request.logprobs != -1 else self.client.ori_vocab_size
            logprobs = self.handler._create_completion_logprobs(top, columns, 0)
            if request.include_draft_logprobs and output["draft_top_logprobs"] is not None:
                drafts = self.handler._create_completion_logprobs(output["draft_top_logprobs"], columns, 0)
        metrics, with_ids = result["metrics"].get("speculate_metrics", None), request.return_token_ids
        if output["skipped"] and not with_ids:
            return None
        choice = names["CompletionResponseStreamChoice"](
            index=index,
            text="" if output["skipped"] else (output["text"] or ""),
            prompt_token_ids=None,
            completion_token_ids=output.get("token_ids") if with_ids else None,
            tool_calls=output["tool_calls"],
            completion_tokens=output.get("completion_tokens") if with_ids else None,
            reasoning_content=output["reasoning_content"],
            arrival_time=arrival_time,
            logprobs=logprobs,
            prompt_logprobs=None,
            draft_logprobs=drafts,
            speculate_metrics=metrics,
        )
        whole = names["CompletionStreamResponse"](
            id=self.request_id,
            created=self.created,
            model=self.model,
            choices=[choice],
            metrics=result["metrics"] if request.collect_metrics else None,
        )
        return f"data: {whole.model_dump_json(exclude_unset=True)}\n\n"


LANES = {lane.code: lane for lane in (ChatLane, CompletionLane)}


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


def difference(lane: Lane, result: Any, chunk: Any, written: bytes) -> str:
    """What FastDeploy's chunk has that ours has not; empty if the bytes are equal."""
    if isinstance(lane, ChatLane):
        lane.opened(lane.generator.ag_frame.f_locals)
    ours = lane.chunk(result)
    if ours is None or ours != chunk:
        return "FastDeploy's chunk is another"
    return "" if framed(ours.encode()) == written else "the server writes it in another way"


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
            except Exception as reason:
                note(f"{STAYS}: {reason if isinstance(reason, NotPlain) else type(reason).__name__}")
                await super().stream_response(send)
                return
            await _stream(self, send, cycle)

    StreamingResponse.__name__, StreamingResponse.__qualname__ = stock.__name__, stock.__qualname__
    return seams.install("api lane", (module, "StreamingResponse", StreamingResponse))


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
                except Exception as reason:
                    note(f"{STAYS}: {reason if isinstance(reason, NotPlain) else type(reason).__name__}")
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
        found = difference(lane, result, chunk, written)
    except Exception as error:
        found = type(error).__name__
    if found:
        note(f"{STAYS}: {found}")
        lane.is_single = False
    else:
        lane.open(result, chunk)
