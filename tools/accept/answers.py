"""Trial of the API side: FastDeploy's generators run with its building blocks and with ours.

While a way answers, everything in the serving module that acts on the outside is replaced: metrics, loggers,
tracing, the clock.  No server may run there meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import random
import time
import types
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

from fd_postproc.fastdeploy.api import answers, feed, lane, responses, streams
from fd_postproc.fastdeploy.api.activation import CHAT
from fd_postproc.fastdeploy.api.chunks._chunks import ARRAY, give_arrays, unpack
from fd_postproc.fastdeploy.api.connections import RequestMap, with_inboxes
from fd_postproc.fastdeploy.events.guard import Guard

from .answer_scripts import EXPERTS, NOW, PROMPT, TEXTS, Script, as_one_value
from .quiet import SILENT, Quiet
from .sandbox import Clock, Overlay, QuietModule
from .virtual_time import Loop, Watched

FAILED = "raises"
_MOST_FAILURES = 0.2  # of FastDeploy's own code: a version may know less than a script asks for
_SCRIPT_WAITS_S = 20.0  # of the loop's own time
_MODEL = 'trial "é"'


def first_difference(
    module: Any,
    scripts: list[Script],
    progress: Callable[[int, int], None] = lambda done, most: None,
    whole: bool = False,
) -> str | None:
    """The first difference of FastDeploy's serving module by itself and with ours.

    Streams are in the steady lane, with hand-overs at random places; without batches, there is no lane.

    Parameters
    ----------
    module : module
        ``serving_chat`` or ``serving_completion``.
    scripts : list of Script
    progress : callable, optional
        It is given how many of how many scripts have run.
    whole : bool, optional
        Whether the bodies of answers that are not streamed are compared, in place of streams.
    """

    def run(went_on: Callable[[], None]) -> str | None:
        give_arrays(True)
        try:
            return _difference_in_use(module, scripts, progress, went_on, whole)
        finally:
            give_arrays(False)

    found: str | None = Watched(run).result()
    return found


def _difference_in_use(
    module: Any,
    tried: list[Script],
    progress: Callable[[int, int], None],
    went_on: Callable[[], None],
    whole: bool,
) -> str | None:
    stock = BodySide(module) if whole else Side(module)
    kind: Any = AnswerSide if whole else LaneSide
    ours = {"": kind(module), ", packed": kind(module, packed=True)}
    failed = 0
    for number, script in enumerate(tried):
        if number % 50 == 0:
            progress(number, len(tried))
        went_on()
        expected = _outcome(stock, script, not whole)
        failed += expected[0] == FAILED
        if failed > 4 + _MOST_FAILURES * number:
            raise RuntimeError(f"FastDeploy's own code fails in the trial '{script.name}': {expected[1]}")
        for which, side in ours.items():
            found = _difference(expected, _outcome(side, script, not whole))
            if found:
                return f"{script.name}, {'not streamed' if whole else 'streamed'}{which}: {found}"
    if not all(one.done for one in ours.values()):
        return "nothing was withheld" if whole else "ours has written nothing"
    return None


def _outcome(side: Side, script: Script, stream: bool) -> list[str]:
    """The chunks, or the exception."""
    try:
        return side.run(script, stream)
    except Exception as error:
        return [FAILED, f"{type(error).__name__}: {error}"]


def _difference(expected: list[str], actual: list[str]) -> str | None:
    for number, (theirs, own) in enumerate(zip(expected, actual, strict=False)):
        if theirs != own:
            at = next((i for i, (a, b) in enumerate(zip(theirs, own, strict=False)) if a != b), 0)
            begin = max(at - 30, 0)
            return (
                f"chunk {number}: {theirs[begin : at + 40]!r} is expected, ours is {own[begin : at + 40]!r}"
            )
    if len(expected) != len(actual):
        return f"{len(actual)} chunks, not {len(expected)}"
    return None


class Side:
    """A serving module with some parts replaced while it answers.

    Parameters
    ----------
    module : module
    packed : bool, optional
        Whether results come as from the engine, out of a message.
    """

    def __init__(self, module: Any, packed: bool = False) -> None:
        self.chat, self.packed = module.__name__ == CHAT, packed
        self._name = "chatcmpl-trial" if self.chat else "cmpl-trial"
        self.protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
        owner = "OpenAIServingChat" if self.chat else "OpenAIServingCompletion"
        self.cls: Any = vars(module)[owner]
        names = {name: _private(name, value) for name, value in vars(module).items()}
        self._changes = [
            (module, name, ours) for name, ours in names.items() if ours is not vars(module)[name]
        ]

    def run(self, script: Script, stream: bool) -> list[str]:
        """The chunks of an answer."""
        with contextlib.ExitStack() as stack, Loop() as loop:
            for change in self._changes:
                stack.enter_context(mock.patch.object(*change))
            return loop.run_until_complete(asyncio.wait_for(self._answer(script, stream), _SCRIPT_WAITS_S))

    async def _answer(self, script: Script, stream: bool) -> list[str]:
        handler = object.__new__(self.cls)
        client = _EngineClient(_Connections(script, self.packed))
        with contextlib.suppress(Exception):  # attributes that a version adds
            handler.__init__(**dict.fromkeys(_required(self.cls)) | {"engine_client": client})
        handler.engine_client = client
        handler.enable_mm_output, handler.tokenizer_base_url = False, None
        handler._is_process_response_dict_async = None
        made = self._generator(handler, script, stream)
        if stream:
            return [chunk async for chunk in made]
        return await self._shown(made)

    async def _shown(self, made: Any) -> list[str]:
        raise NotImplementedError

    def _generator(self, handler: Any, script: Script, stream: bool) -> Any:
        options = {**script.options, "stream": stream, "model": _MODEL}
        if not stream:
            options.pop("stream_options", None)  # refused
        prompts = 1
        values: dict[str, Any] = {"request_id": self._name, "model_name": _MODEL, "created_time": int(NOW)}
        if self.chat:
            request = self.protocol.ChatCompletionRequest(
                messages=[{"role": "user", "content": "x"}], **options
            )
            values.update(prompt_token_ids=[1, 2], prompt_tokens="x", max_tokens=script.max_tokens)
            name = "chat_completion_stream_generator" if stream else "chat_completion_full_generator"
        else:
            request = self.protocol.CompletionRequest(prompt="x", **options)
            values.update(
                num_choices=script.choices,
                prompt_batched_token_ids=[[1, 2]] * prompts,
                prompt_tokens_list=["x"] * prompts,
                max_tokens_list=[script.max_tokens] * prompts,
            )
            name = "completion_stream_generator" if stream else "completion_full_generator"
        generator = getattr(handler, name)
        values["request"] = request
        return generator(**{name: values[name] for name in inspect.signature(generator).parameters})


class LaneSide(Side):
    """A serving module with the steady lane, which hands over to FastDeploy's generator at random places.

    Attributes
    ----------
    done : int
        How many chunks the lane has written, or parts of FastDeploy's, where there is no lane.
    """

    def __init__(self, module: Any, packed: bool = False) -> None:
        super().__init__(module, packed)
        self.done, draw = 0, random.Random(7)
        choice_of = lane.Lane._choice_of
        place: Any = (lane.Lane, "_written") if are_batches() else (feed.Feed, "_part")
        written = getattr(*place)

        def chosen(stream: lane.Lane, result: Any) -> Any:
            return choice_of(stream, result) if draw.random() < 0.8 else None

        def counted(*told: Any) -> Any:
            made = written(*told)
            self.done += made is not None
            return made

        self._changes += [
            (lane.Lane, "_choice_of", chosen),
            (*place, counted),
            (streams.Streams, "_why_not", lambda *of: None),
            *_connections(),
            *streams.ours_in(module),
        ]


class BodySide(Side):
    """A serving module, of whose answers the bodies are compared."""

    async def _shown(self, made: Any) -> list[str]:
        answer = await made
        return ["None"] if answer is None else [type(answer).__name__, await self._body(answer.model_dump())]

    async def _body(self, content: Any) -> str:
        try:
            return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError as error:
            return str(error).partition(":")[0]


class AnswerSide(BodySide):
    """A serving module of whose answers values are withheld.

    Attributes
    ----------
    done : int
        From how many answers.
    """

    def __init__(self, module: Any, packed: bool = False) -> None:
        super().__init__(module, packed)
        self.done, marked = 0, answers.Answer.marked

        def counted(answer: answers.Answer, *told: Any) -> Any:
            parts = marked(answer, *told)
            self.done += bool(parts)
            return parts

        self._application = types.SimpleNamespace(
            JSONResponse=importlib.import_module("fastapi.responses").JSONResponse,
            connection_manager=contextlib.asynccontextmanager(_entered),
        )
        self._changes += [
            (answers.Answer, "marked", counted),
            (answers, "why_not", lambda *of: None),
            *_connections(),
            answers.replacement(module),
        ]

    async def _shown(self, made: Any) -> list[str]:
        restore = responses.install(self._application)
        try:
            async with self._application.connection_manager():
                return await super()._shown(made)
        finally:
            restore()

    async def _body(self, content: Any) -> str:
        pieces = []

        async def send(event: Any) -> None:
            pieces.append(event.get("body", b""))

        try:
            await self._application.JSONResponse(content=content)({"type": "http"}, None, send)
        except ValueError as error:
            return str(error).partition(":")[0]
        return b"".join(pieces).decode()


def are_batches() -> bool:
    """Whether results come in batches: then a generator gets no dealer."""
    return hasattr(importlib.import_module("fastdeploy.envs"), "ZMQ_SEND_BATCH_DATA")


def _connections() -> list[tuple[Any, str, Any]]:
    """What gives a generator ours to wait at."""
    ours = (_Connections, "get_connection", with_inboxes(_Connections.get_connection, _GUARD))
    return [*([(_Connections, "dealer", None)] if are_batches() else []), ours]


async def _entered() -> AsyncIterator[None]:
    yield


_GUARD = Guard("api connections")


def _required(cls: Any) -> list[str]:
    """The parameters of a class that have no default."""
    parameters = inspect.signature(cls).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def _private(name: str, value: Any) -> Any:
    """The private replacement for a name of the module: it has no outside effect."""
    if name in ("main_process_metrics", "trace_print"):
        return Quiet()
    if isinstance(value, logging.Logger) or name.endswith("_logger"):
        return SILENT
    if isinstance(value, types.FunctionType) and value.__module__.startswith("fastdeploy.logger"):
        return Quiet()
    if isinstance(value, types.ModuleType):
        if value is time:
            clock = Clock()
            clock.now = NOW
            return clock
        if value.__name__ == "traceback":
            return Overlay(value, format_exc=lambda *arguments: "<traceback>")
        if value.__name__.startswith("fastdeploy.metrics"):
            return QuietModule(value)
        if value.__name__ == "fastdeploy.envs":
            return Overlay(value, ZMQ_SEND_BATCH_DATA=1)
    return value


class _EngineClient:
    """The part of FastDeploy's EngineClient that a generator uses."""

    ori_vocab_size = 100

    def __init__(self, connections: _Connections) -> None:
        self.data_processor = _Processor()
        self.connection_manager = connections
        self.semaphore = Quiet()

    def check_model_weight_status(self) -> bool:
        return False

    async def abort(self, *arguments: Any) -> None:
        pass


class _Connections:
    dealer: Any = Quiet()

    def __init__(self, script: Script, packed: bool) -> None:
        self.script, self.packed = script, packed
        self.request_map = RequestMap({})

    async def get_connection(self, request_id: str, num_choices: int = 1) -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        compound = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", None)
        for group in self.script.groups():
            for result in group:
                if result[PROMPT] is not None and not self.packed:
                    asarray = importlib.import_module("numpy").asarray  # a version may take no lists
                    result[PROMPT] = [asarray(one) for one in result[PROMPT]]
                if compound is not None:  # ids that tell the choice another way
                    result["request_id"] = compound(*_choice_of(result["request_id"]))
            queue.put_nowait(_through_a_message(group) if self.packed else group)
        self.request_map[request_id] = queue
        return self.dealer, queue

    async def cleanup_request(self, request_id: str) -> None:
        pass


def _through_a_message(group: list[dict[str, Any]]) -> Any:
    """Results as they come out of a message of an engine with the plug-in."""
    msgpack = importlib.import_module("msgpack")
    for result in group:
        if result.get(EXPERTS) is not None:
            result[EXPERTS] = msgpack.ExtType(ARRAY, as_one_value(result[EXPERTS]))
        if result[PROMPT] is not None:
            arrays = zip(result[PROMPT], ("i8", "f8", "i8"), strict=True)
            result[PROMPT] = [msgpack.ExtType(ARRAY, as_one_value(*one)) for one in arrays]
    return unpack(msgpack.packb(group))


def _choice_of(request_id: str) -> tuple[str, int]:
    name, _, choice = request_id.rpartition("_")
    return name, int(choice)


class _Processor:
    """A data processor for results that are processed already."""

    __module__ = "fastdeploy.trial"  # of another one's streams nothing is withheld
    output_fallback_manager = None

    def __init__(self) -> None:
        self.tokenizer = self

    def process_response_dict(self, response_dict: Any, **options: Any) -> Any:
        return response_dict

    def process_logprob_response(self, token_ids: Any, **options: Any) -> str:
        ids = token_ids if isinstance(token_ids, list) else [token_ids]
        return "".join(TEXTS[token] for token in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"Ġ{token}é"

    def decode(self, token_ids: Any, **options: Any) -> str:
        return self.process_logprob_response(token_ids)
