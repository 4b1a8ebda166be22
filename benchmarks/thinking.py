"""One chunk of a long answer in FastDeploy's own serving code: text, parsers, counts, and its JSON.

From the bytes of the engine's message to the server-sent event: dispatcher, data processor, tokenizer,
parsers and generators are those of the tree that ``FD_POSTPROC_FASTDEPLOY`` names, with the plug-in or
without.  The case "text" is of that what the data processor does: text, parsers and reasoning tokens.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .cases import VOCABULARY, Comparison, Ready, Unavailable, check

if TYPE_CHECKING:
    from .runner import Compared

ABOUT = (
    "a chunk of a long answer in FastDeploy's own serving code, by parser, tokenizer and tokens before it; "
    "needs FD_POSTPROC_FASTDEPLOY"
)
STOCK, OURS = "FastDeploy itself", "fd_postproc"
REFERENCE = ""
BASELINE = STOCK
PLACE = "in FastDeploy's tree"

TOKENIZERS = Path(__file__).resolve().parents[1] / "tests" / "golden_chunks" / "tokenizers"
BYTES, KINDS = "bytebpe", ("sentencepiece", "metaspace", "wordpiece")
PARSERS = {
    "no parser": ("", ""),
    "qwen3": ("qwen3", ""),
    "ernie-x1 with tools": ("ernie-x1", "ernie-x1"),
    "ernie-45-vl": ("ernie-45-vl", ""),
    "ernie-45-vl-thinking with tools": ("ernie-45-vl-thinking", "ernie-45-vl-thinking"),
}
"""Reasoning and tool parser, by FastDeploy's names; "" is none."""
BEFORE = (500, 2_000, 8_000, 32_000, 128_000)
"""Tokens before the chunk."""

_TEXT = (
    "We look at it step by step: first the sum of all parts, then what is left of them.\n"
    "日本語と中文。 A naïve café, 1.5e-7 + x[3] = ?\n\n"
)
_INSIDE = {"thinking": "", "answering": "</think>\n<response>\n", "calling": "</think>\n<tool_call>\n"}
_CALL = '{"name": "f", "arguments": {"text": "'
_DRIFT = 1 / 32  # the part of an answer by which it may grow while it is timed
_LEAST = 64  # chunks in a row of one answer


class Thought(NamedTuple):
    """A case.

    Attributes
    ----------
    api : {"chat", "completion", "text"}
    parser : str
        Of `PARSERS`.
    before : int
        Tokens before the chunk.
    tokenizer : str
        Folder of a tokenizer.
    top : int or None
        Likeliest tokens; None without log-probabilities.
    inside : {"thinking", "answering", "calling"}
        The part of the answer in which the chunk is.
    """

    api: str
    parser: str
    before: int
    tokenizer: str = BYTES
    top: int | None = None
    inside: str = "thinking"

    def __str__(self) -> str:
        words = [self.api, self.parser, *([] if self.tokenizer == BYTES else [self.tokenizer])]
        words += [f"top_logprobs {self.top}"] if self.top is not None else []
        words += [self.inside] if self.inside != "thinking" else []
        return f"{', '.join(words)}, after {self.before:,}"


def comparisons(quick: bool) -> Iterator[Comparison]:
    for thought in _quick() if quick else _all():
        ways = {STOCK: partial(_make, thought, False), OURS: partial(_make, thought, True)}
        yield Comparison(str(thought), ways, rounds=2)


def _quick() -> list[Thought]:
    long = [Thought("text", parser, 32_000) for parser in ("no parser", "qwen3")]
    return [Thought("text", "qwen3", 500), *long, Thought("chat", "qwen3", 8_000)]


def _all() -> list[Thought]:
    made = [Thought("text", parser, before) for parser in PARSERS for before in BEFORE]
    made += [
        Thought("chat", parser, before, kind)
        for kind in (BYTES, *KINDS)
        for parser in PARSERS
        for before in BEFORE
    ]
    made += [
        Thought(api, parser, before, top=top)
        for api, top in (("completion", None), ("chat", 20), ("completion", 20))
        for parser in PARSERS
        for before in BEFORE
    ]
    made += [
        Thought("text", parser, before, inside="answering")
        for parser in list(PARSERS)[1:]
        for before in BEFORE
    ]
    made += [
        Thought("text", parser, before, inside="calling")
        for parser in PARSERS
        if "tools" in parser
        for before in (500, 2_000)
    ]
    return made


def notes(compared: list[Compared]) -> list[str]:
    times = {one.case: {name: found.median for name, found in one.results.items()} for one in compared}
    said = []
    for parser in PARSERS:
        short, long = (times.get(f"text, {parser}, after {n:,}", {}) for n in (500, 32_000))
        if {STOCK, OURS} <= short.keys() & long.keys():
            grew = {name: long[name] / short[name] for name in (STOCK, OURS)}
            said.append(
                f"{parser}: a chunk's text after 32,000 tokens takes {grew[OURS]:.2f} times that after 500 "
                f"({grew[STOCK]:.1f} times FastDeploy's own way)"
            )
    return said


# ---- FastDeploy ------------------------------------------------------------------------------------------

_loaded: dict[str, Any] = {}


def load() -> None:
    """Import FastDeploy's serving code from the named tree, and make a data processor for each tokenizer.

    Raises
    ------
    Unavailable
        If no tree is named, or it cannot be imported; the text says what is missing.
    """
    if "processors" in _loaded:
        return
    tree = os.environ.get("FD_POSTPROC_FASTDEPLOY", "").split(os.pathsep)[0]
    if not tree:
        raise Unavailable("needs FastDeploy's serving code: FD_POSTPROC_FASTDEPLOY names no source tree")
    folder = Path(tree).parent if Path(tree).name == "fastdeploy" else Path(tree)
    known = sys.modules.get("fastdeploy")
    if known is not None and not Path(str(known.__file__)).is_relative_to(folder):
        raise Unavailable(f"another FastDeploy is loaded: {known.__file__}")
    sys.path.insert(0, str(folder))
    _loaded["logs"] = tempfile.TemporaryDirectory()
    os.environ |= {"FD_PLUGINS": "none", "FD_LOG_DIR": _loaded["logs"].name}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _import()
    except ImportError as error:
        raise Unavailable(f"{folder} cannot be imported: {error}") from None


def _import() -> None:
    for short, name in (
        ("msgpack", "msgpack"),
        ("fastdeploy.utils", "fastdeploy.utils"),
        ("protocol", "fastdeploy.entrypoints.openai.protocol"),
        ("utils", "fastdeploy.entrypoints.openai.utils"),
        ("chat", "fastdeploy.entrypoints.openai.serving_chat"),
        ("completion", "fastdeploy.entrypoints.openai.serving_completion"),
        ("reasoning", "fastdeploy.reasoning"),
        ("tools", "fastdeploy.entrypoints.openai.tool_parsers"),
    ):
        _loaded[short] = importlib.import_module(name)
    if not hasattr(_loaded["utils"].DealerConnectionManager, "_dispatch_batch_responses"):
        raise Unavailable("this FastDeploy's API server gets its results one by one")
    _loaded["processors"] = {kind: _processor(kind) for kind in (BYTES, *KINDS)}


def _processor(kind: str) -> Any:
    """FastDeploy's data processor for a tokenizer, whatever the version's classes are."""
    folder, ernie = str(TOKENIZERS / kind), kind == "sentencepiece"
    for name in ("processor", "text_processor", "ernie4_5_processor"):
        if importlib.util.find_spec(f"fastdeploy.input.{name}") is None:
            continue
        module = importlib.import_module(f"fastdeploy.input.{name}")
        for cls in (getattr(module, "Processor", None), getattr(module, "TextProcessor", None)):
            if cls is not None:
                return cls(folder, tokenizer_type="ernie4_5" if ernie else "auto")
        cls = getattr(module, "Ernie4_5Processor" if ernie else "DataProcessor", None)
        if cls is not None:
            return cls(folder)
    raise Unavailable("this FastDeploy has no data processor that is known")


def _with_parsers(thought: Thought) -> Any:
    """The data processor of a case."""
    processor = _loaded["processors"][thought.tokenizer]
    reasoning, tools = PARSERS[thought.parser]
    processor.reasoning_parser = processor.tool_parser_obj = None
    try:
        if reasoning:
            cls = _loaded["reasoning"].ReasoningParserManager.get_reasoning_parser(reasoning)
            processor.reasoning_parser = cls(processor.tokenizer)
        if tools:
            processor.tool_parser_obj = _loaded["tools"].ToolParserManager.get_tool_parser(tools)
    except KeyError:
        raise Unavailable(f"this FastDeploy has no parser {thought.parser}") from None
    return processor


# ---- answers ---------------------------------------------------------------------------------------------


class Tokens:
    """The tokens of an answer.

    Parameters
    ----------
    tokenizer : object
        FastDeploy's.
    inside : str
        Of `Thought`.
    """

    def __init__(self, tokenizer: Any, inside: str) -> None:
        self.ids_of = lambda text: list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)))
        self.words = self.ids_of(_TEXT if inside != "calling" else _TEXT.replace("\n", " "))
        self.marks = self.ids_of(_INSIDE[inside]) if _INSIDE[inside] else []
        self.rest = self.ids_of(_CALL) if inside == "calling" else []

    def before(self, count: int) -> list[list[int]]:
        """Results with so many tokens: what comes before the chunks.

        The last ones are short, as those that are timed: the next text is decoded with them.
        """
        half = self._some(count // 2)
        marks = [[one] for one in self.marks]
        ends = [[one] for one in self.words]
        if self.rest:  # the call holds them all
            return [self.words, *marks, self.rest, half, half, *ends]
        return [half, *ends, *marks, half, *ends]

    def _some(self, count: int) -> list[int]:
        """So many tokens that end with a whole character."""
        times, rest = divmod(count, len(self.words))
        return self.words * times + self.words[-1:] * rest

    def next(self) -> Iterator[list[int]]:
        """Results of one token each."""
        while True:
            yield from ([one] for one in self.words)


class Answers:
    """Streamed answers of FastDeploy's serving code, their results pushed one by one.

    Parameters
    ----------
    thought : Thought
    """

    def __init__(self, thought: Thought) -> None:
        self.thought = thought
        self.processor = _with_parsers(thought)
        self.tokens = Tokens(self.processor.tokenizer, thought.inside)
        self.count = 0

    def chunks(self, count: int) -> list[str]:
        """The chunks of an answer, from the first one timed."""
        return self._loop(self._run(count))[1]

    def run(self, loops: int) -> float:
        """Seconds that so many chunks take, of as many answers as needed."""
        most = max(_LEAST, int(self.thought.before * _DRIFT))
        took = 0.0
        while loops:
            took += self._loop(self._run(min(loops, most)))[0]
            loops -= min(loops, most)
        return took

    def _loop(self, work: Any) -> Any:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()

    async def _run(self, count: int) -> tuple[float, list[str]]:
        self.count += 1
        name = f"{'cmpl' if self.thought.api == 'completion' else 'chatcmpl'}-thinking{self.count}"
        self.processor.model_status_dict[_choice_id(name)] = "think_start"
        kind = _Text if self.thought.api == "text" else _Served
        answer = kind(self, name)
        try:
            for ids in self.tokens.before(self.thought.before):
                await answer.give(ids)
            results = [answer.packed(ids) for ids in islice(self.tokens.next(), count)]
            said = []
            began = time.thread_time()
            for result in results:
                said.append(await answer.next(result))
            took = time.thread_time() - began  # what others do on the machine is not in it
            return took, [re.sub(f'{name}|"created":[0-9]+', "", one) for one in said]
        finally:
            await answer.close()
            for table in ("decode_status", "model_status_dict", "tool_parser_dict"):
                getattr(self.processor, table).clear()


class _Text:
    """What the data processor makes of results."""

    def __init__(self, answers: Answers, name: str) -> None:
        self.processor, self.name = answers.processor, name

    def packed(self, ids: list[int]) -> Any:
        return _result(self.name, ids, None)

    async def give(self, ids: list[int]) -> None:
        await self.next(self.packed(ids))

    async def next(self, result: Any) -> str:
        outputs = self.processor.process_response_dict_streaming(result, request=None)["outputs"]
        return f"{outputs['text']!r} {outputs['reasoning_content']!r} {outputs['tool_calls']!r}"

    async def close(self) -> None:
        pass


class _Served:
    """A request of FastDeploy's handlers, from the bytes of messages to chunks."""

    def __init__(self, answers: Answers, name: str) -> None:
        self.thought, self.name, self.words = answers.thought, name, answers.tokens.words
        self.answers = answers.processor.decode_status
        self.messages: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.read, self.given = self.messages.get, 0
        manager = _loaded["utils"].DealerConnectionManager(pid=0)
        manager.running, manager.pull_client, manager.pull_metrics_address = True, self, "ipc://none"
        self.dispatcher = asyncio.ensure_future(manager._dispatch_batch_responses())
        self.chunks = _generator(answers, manager, name)
        self.awaited: asyncio.Future[str] | None = None

    def packed(self, ids: list[int]) -> Any:
        return [
            _loaded["msgpack"].packb([[_result(self.name, ids, _tops(ids, self.words, self.thought.top))]])
        ]

    async def give(self, ids: list[int]) -> None:
        """A result before those that are timed: a parser makes a chunk of it, or none."""
        self.given += len(ids)
        settled = 0
        while settled < 50:
            if self.awaited is None or self.awaited.done():
                self.awaited, settled = asyncio.ensure_future(anext(self.chunks)), 0
                await asyncio.sleep(0)
            if ids:  # it is registered by now
                self.messages.put_nowait(self.packed(ids))
                ids = []
            await asyncio.sleep(0)
            status = self.answers.get(_choice_id(self.name))
            settled += status is not None and len(status[2]) == self.given

    async def next(self, result: Any) -> str:
        self.messages.put_nowait(result)
        if self.awaited is None:
            chunk: str = await anext(self.chunks)
            return chunk
        chunk, self.awaited = await self.awaited, None
        return chunk

    async def close(self) -> None:
        last = _result(self.name, self.words[:1], None)
        last["finished"] = True
        self.messages.put_nowait([_loaded["msgpack"].packb([[last]])])
        async for _ in self.chunks:
            pass
        self.dispatcher.cancel()


class _Client:
    """What of FastDeploy's EngineClient the handlers use."""

    is_master, ori_vocab_size = True, VOCABULARY

    def __init__(self, processor: Any, manager: Any) -> None:
        self.data_processor, self.connection_manager, self.semaphore = processor, manager, self

    def check_model_weight_status(self) -> bool:
        return False

    def release(self) -> None:
        pass

    def status(self) -> str:
        return ""

    async def abort(self, *arguments: Any) -> None:
        pass


def _generator(answers: Answers, manager: Any, name: str) -> Any:
    """FastDeploy's generator of a streamed answer."""
    top, protocol = answers.thought.top, _loaded["protocol"]
    client = _Client(answers.processor, manager)
    if answers.thought.api == "chat":
        cls, method = _loaded["chat"].OpenAIServingChat, "chat_completion_stream_generator"
        options = {} if top is None else {"logprobs": True, "top_logprobs": top}
        messages = [{"role": "user", "content": "x"}]
        request = protocol.ChatCompletionRequest(messages=messages, stream=True, **options)
    else:
        cls, method = _loaded["completion"].OpenAIServingCompletion, "completion_stream_generator"
        request = protocol.CompletionRequest(prompt="x", stream=True, logprobs=top)
    plain = {"pid": 0, "max_waiting_time": -1, "engine_client": client}
    handler = cls(**{one: plain.get(one) for one in _needed(cls)})
    values = {
        "request": request, "request_id": name, "model_name": "default", "created_time": 0, "num_choices": 1,
        "prompt_token_ids": [1], "prompt_tokens": "x", "max_tokens": 1 << 20, "max_tokens_list": [1 << 20],
        "prompt_batched_token_ids": [[1]], "prompt_tokens_list": ["x"],
    }  # fmt: skip
    generator = getattr(handler, method)
    return generator(**{one: values[one] for one in _needed(generator)})


def _needed(call: Any) -> list[str]:
    """The parameters without a default."""
    parameters = inspect.signature(call).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def _choice_id(name: str) -> str:
    """The id of an answer's only choice."""
    compound = getattr(_loaded["fastdeploy.utils"], "make_choice_id", None)
    return compound(name, 0) if compound is not None else f"{name}_0"


def _result(name: str, ids: list[int], tops: Any) -> dict[str, Any]:
    """A result as the engine sends it."""
    return {
        "request_id": _choice_id(name), "prompt": None, "prompt_token_ids": [], "prompt_logprobs": None,
        "output_type": 3,
        "outputs": {
            "index": 0, "send_idx": 1, "token_ids": ids, "decode_type": 0, "logprob": None,
            "top_logprobs": tops, "draft_top_logprobs": None, "logprobs": None, "draft_token_ids": [],
            "text": None, "reasoning_content": None, "reasoning_token_num": 0, "sampling_mask": None,
        },
        "metrics": {**dict.fromkeys(_TIMES, 1763740797.25), "speculate_metrics": None, "preempted_count": 0},
        "finished": False, "num_cached_tokens": 0, "num_input_image_tokens": 0, "num_input_video_tokens": 0,
        "error_code": 200, "error_msg": None, "ic_req_data": None, "prompt_token_ids_len": 140,
        "trace_carrier": None,
    }  # fmt: skip


_TIMES = (
    *("arrival_time", "preprocess_start_time", "preprocess_end_time", "scheduler_recv_req_time"),
    *("engine_get_req_time", "ask_decode_resource_start_time", "add_req_to_resource_manager_time"),
    *("inference_start_time", "engine_recv_latest_token_time", "engine_recv_first_token_time"),
    *("first_token_time", "time_in_queue", "preprocess_cost_time", "model_forward_time"),
    *("model_execute_time", "request_start_time", "llm_engine_recv_req_timestamp"),
    *("llm_engine_send_req_to_engine_timestamp", "llm_engine_recv_latest_token_timestamp"),
)


def _tops(ids: list[int], words: list[int], top: int | None) -> Any:
    """Log-probabilities of a result: ids, scores and ranks; None if not asked for."""
    if top is None or len(ids) > 1:
        return None
    others = (words * (top // len(words) + 1))[:top]
    return [
        [[one, *others] for one in ids],
        [[-0.1 * n for n in range(top + 1)] for _ in ids],
        [1] * len(ids),
    ]


def _make(thought: Thought, ours: bool) -> Ready:
    load()
    answers = Answers(thought)
    right = answers.chunks(_LEAST // 2)
    if ours:
        from fd_postproc.fastdeploy.api import parsers
        from fd_postproc.fastdeploy.api.chunks._chunks import totals
        from fd_postproc.fastdeploy.api.entry import register

        register()
        check(answers.chunks(_LEAST // 2) == right, "other chunks")
        if not parsers.is_quick(answers.processor):
            raise Unavailable(f"left to FastDeploy: {'; '.join(totals()[1]) or 'its methods are others'}")
    return Ready(answers.run, len(right[-1]))
