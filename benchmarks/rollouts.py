"""A finished answer of a rollout, with the arrays that trainers ask for: engine, message, API server.

The result goes from FastDeploy's object to the bytes of a message.  From there FastDeploy's own generator and
response make the bytes that a client gets, in one process.  Ours is the same code with what the plug-in puts
into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from .cases import Comparison, Ready, Unavailable, check

ABOUT = (
    "the last result of an answer, with routed experts, sampling masks or the prompt's log-probabilities -> "
    "a message -> the body of the response; all in CPU time, as is the event loop's longest hold"
)
OURS = "fd_postproc"
STOCK = "FastDeploy itself"
REFERENCE = OURS
BASELINE = STOCK

EXPERTS = [(tokens, layers, kind) for tokens in (500, 2000, 8000, 32000) for layers in (46, 94)
           for kind in ("uint8", "int16")]  # fmt: skip
MASKS = [(8000, 32), (2000, 2000)]
PROMPTS = [(8000, 21)]


def comparisons(quick: bool) -> Iterator[Comparison]:
    for tokens, layers, kind in [(2000, 46, "uint8")] if quick else EXPERTS:
        label = f"experts, {tokens} tokens, {layers} x 8 {kind}"
        yield from _places(label, partial(_experts, tokens, layers, kind))
    for tokens, ids in () if quick else MASKS:
        yield from _places(f"masks, {tokens} tokens, {ids} ids", partial(_masks, tokens, ids))
    for tokens, columns in () if quick else PROMPTS:
        yield from _places(f"prompt, {tokens} x {columns}", partial(_prompt, tokens, columns))


def _places(label: str, results: Callable[[Any], list[Any]]) -> Iterator[Comparison]:
    for place, make in (("engine", _engine), ("API server", _server)):
        ways = {name: partial(make, name, results) for name in (STOCK, OURS)}
        yield Comparison(f"{label}, {place}", ways, rounds=1)


# ---- results ---------------------------------------------------------------------------------------------


def _result(plan: Any, **values: Any) -> Any:
    metrics = plan.copy_metrics(plan.fd.RequestMetrics(arrival_time=1.5, request_start_time=1.5))
    name = getattr(
        importlib.import_module("fastdeploy.utils"), "make_choice_id", lambda *parts: "_".join(parts)
    )
    result = plan.new_result(0, 0, name("chatcmpl-rollout", "0"), 3, metrics)
    result.outputs.token_ids = [5]
    result.outputs.text = "a"
    for name, value in values.items():
        setattr(result.outputs if name == "sampling_mask" else result, name, value)
    return result


def _experts(tokens: int, layers: int, kind: str, plan: Any) -> list[Any]:
    most = 128 if kind == "uint8" else 384
    experts = np.random.default_rng(1).integers(0, most, (tokens, layers, 8)).astype(kind)
    return [_result(plan, routing_data=experts, finished=True)]


def _masks(tokens: int, ids: int, plan: Any) -> list[Any]:
    draw = np.random.default_rng(2)
    masks = [np.sort(draw.choice(150_000, ids, replace=False)).tolist() for _ in range(16)]
    return [
        _result(plan, sampling_mask=masks[step % 16], finished=step == tokens - 1) for step in range(tokens)
    ]


def _prompt(tokens: int, columns: int, plan: Any) -> list[Any]:
    draw = np.random.default_rng(3)
    kind = importlib.import_module("fastdeploy.worker.output").LogprobsTensors
    ids = draw.integers(0, 2000, (tokens, columns))
    scores = -draw.exponential(3, (tokens, columns)).astype(np.float32)
    rows = kind(ids, scores, draw.integers(1, 2000, tokens))
    return [_result(plan, prompt_logprobs=rows, finished=True)]


def _cpu_timed(call: Callable[[], Any]) -> Callable[[int], float]:
    """The process's CPU time: what a neighbour takes in such a long call is not the call's."""

    def run(loops: int) -> float:
        began = time.process_time()
        for _ in range(loops):
            call()
        return time.process_time() - began

    return run


# ---- the engine ------------------------------------------------------------------------------------------


def load() -> None:
    """FastDeploy's modules."""
    from fd_postproc.fastdeploy.report import import_fastdeploy

    try:
        import_fastdeploy()
        for name in ("output.token_processor", "inter_communicator.zmq_server"):
            importlib.import_module(f"fastdeploy.{name}")
    except ImportError as error:
        raise Unavailable(f"needs FastDeploy, or FD_POSTPROC_FASTDEPLOY: {error}") from None


def packers() -> tuple[Any, dict[str, Callable[[list[Any]], bytes]]]:
    """The plan for results, and what makes a message of them, by way; ours: to an API server of ours."""
    from fd_postproc.fastdeploy.engine.results._results import Messages
    from fd_postproc.fastdeploy.engine.results.result_classes import plan_of

    load()
    plan = plan_of(importlib.import_module("fastdeploy.output.token_processor"))
    server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
    packb = partial(
        importlib.import_module("msgpack").packb, default=getattr(server, "_msgpack_default", None)
    )
    messages = Messages(plan)
    return plan, {
        STOCK: lambda results: packb([[one.to_dict() for one in results]]),  # type: ignore[dict-item]
        OURS: lambda results: messages.pack([results], packb, lambda: True),
    }


def _engine(name: str, results: Callable[[Any], list[Any]]) -> Ready:
    plan, ways = packers()
    made = [[result] for result in results(plan)]  # a message for each step

    def pack() -> list[bytes]:
        return [ways[name](step) for step in made]

    return Ready(_cpu_timed(pack), sum(map(len, pack())))


# ---- the API server --------------------------------------------------------------------------------------


APPLICATION = """
def respond(answer):
    return JSONResponse(content=answer.model_dump())
"""
"""As FastDeploy's application answers."""


class Processor:
    """A data processor for results that are processed already, with a text for each id."""

    def __init__(self) -> None:
        self.tokenizer = self

    def process_response_dict(self, response_dict: Any, **options: Any) -> Any:
        return response_dict

    def process_logprob_response(self, token_ids: Any, **options: Any) -> str:
        return f" t{token_ids[0] if isinstance(token_ids, list) else token_ids}"


class Server:
    """FastDeploy's chat completions around results that come, as far as the response's bytes.

    One of ours at a time in a process, until `close`.

    Parameters
    ----------
    name : {STOCK, OURS}
    options : dict
        Of the request.
    """

    def __init__(self, name: str, **options: Any) -> None:
        from fd_postproc.fastdeploy.api import responses
        from fd_postproc.fastdeploy.api.chunks._chunks import unpack
        from fd_postproc.fastdeploy.api.chunks.building_blocks import Blocks, blocks_of, in_use
        from tools.accept.answers import Side

        load()
        try:
            response = importlib.import_module("fastapi.responses").JSONResponse
        except ImportError as error:
            raise Unavailable(f"needs what FastDeploy's server does: {error}") from None
        module = importlib.import_module("fastdeploy.entrypoints.openai.serving_chat")
        ours = name == OURS
        blocks = blocks_of(module) if ours else Blocks()
        self.using = contextlib.ExitStack()
        if ours:
            self.using.enter_context(in_use(module, blocks))
        self.unpack: Any = unpack if ours else importlib.import_module("msgpack").unpackb
        self.side = Side(module, blocks)
        self.options = options
        self.application: Any = types.ModuleType("application")
        self.application.JSONResponse = response
        if ours:
            self.using.callback(responses.install(self.application))
        exec(APPLICATION, vars(self.application))

    def close(self) -> None:
        """Restore what FastDeploy had."""
        self.using.close()

    async def respond(self, messages: list[bytes], sink: Callable[[bytes], Any]) -> None:
        """Answer with the results of messages."""
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def feed() -> None:  # a step's when the one before is read, as they come
            for message in messages:
                for group in self.unpack(message):
                    queue.put_nowait(group)
                while not queue.empty():
                    await asyncio.sleep(0)

        feeding = asyncio.ensure_future(feed())
        handler = object.__new__(self.side.cls)
        quiet: Any = _Quiet()

        async def connection(*arguments: Any) -> Any:
            return quiet, queue

        async def cleanup(*arguments: Any) -> None:
            pass

        handler.engine_client = SimpleNamespace(
            data_processor=Processor(),
            connection_manager=SimpleNamespace(get_connection=connection, cleanup_request=cleanup),
            semaphore=quiet,
            check_model_weight_status=lambda: False,
            ori_vocab_size=2000,
        )
        handler.enable_mm_output, handler.tokenizer_base_url = False, None
        request = self.side.protocol.ChatCompletionRequest(
            messages=[{"role": "user", "content": "x"}], **self.options
        )
        values = {
            "request": request,
            "request_id": "chatcmpl-rollout",
            "model_name": "default",
            "prompt_token_ids": [1, 2],
            "prompt_tokens": "x",
            "max_tokens": 9,
        }
        answer = await handler.chat_completion_full_generator(**values)
        await feeding

        async def send(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.body":
                sink(event["body"])

        await self.application.respond(answer)({"type": "http"}, None, send)


class _Quiet:
    """Does nothing, whatever is called."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


async def longest_hold(work: Any) -> float:
    """Run a coroutine beside another one that is always ready; the longest time in between, of CPU, in s."""
    longest, over = 0.0, False

    async def tick() -> None:
        nonlocal longest
        last = time.thread_time()
        while not over:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    try:
        await work
    finally:
        over = True
        await ticking
    return longest


def _server(name: str, results: Callable[[Any], list[Any]]) -> Ready:
    plan, ways = packers()
    made = results(plan)
    messages = [ways[name]([result]) for result in made]
    options = {"prompt_logprobs": 20} if made[-1].prompt_logprobs is not None else {}
    server = Server(name, **options)
    loop = asyncio.new_event_loop()
    body: list[bytes] = []

    def call(sink: Callable[[bytes], Any] = len) -> float:
        return loop.run_until_complete(longest_hold(server.respond(messages, sink)))

    call(body.append)
    check(json.loads(b"".join(body))["object"] == "chat.completion", "an error in place of an answer")
    size, body = len(b"".join(body)), []
    holds: list[float] = [call() for _ in range(3)]
    return Ready(_cpu_timed(call), size, facts=lambda: {"longest_hold_ms": round(1e3 * min(holds), 2)})
