"""FastDeploy's token processor and data processor, its own and with fd_postproc.

Numbers: a step's tensors, or our `Step`, to results given to the scheduler.  Texts: the same, and on through
msgpack, which the results cross between FastDeploy's processes, to the data processor's texts and a chat's
log-probabilities, or to the JSON of its chunk.  That needs FastDeploy's own serving code, which
FD_POSTPROC_FASTDEPLOY names.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Callable
from typing import Any

from fd_postproc import Step

from .. import processors
from ..cases import Unavailable
from .clock import Contender
from .load import Answer, Load, Message, Model

STOCK, RESTATED, OURS = "FastDeploy", processors.RESTATED, processors.OURS
PACKAGES = ("fastdeploy", "paddlepaddle", "tokenizers", "msgpack", "pydantic")


def load_engine() -> None:
    """Import what the contenders need, once for all of them."""
    processors.token_processor_module()


def contenders(load: Load, model: Model, plug_in: bool) -> dict[str, Callable[[], Contender]]:
    """Those of a process in which the plug-in is loaded, or not: it replaces parts of FastDeploy."""
    if load.texts:
        name = OURS if plug_in else STOCK
        return {
            f"{name}, texts": lambda: _texts(name, load, model, False),
            f"{name}, up to JSON": lambda: _texts(name, load, model, True),
        }
    if plug_in:
        read = {f"{OURS}, all lists read": lambda: _numbers(OURS, load, read=True)}
        return {OURS: lambda: _numbers(OURS, load), **(read if load.top is not None else {})}
    return {name: lambda name=name: _numbers(name, load) for name in processors.names() if name != OURS}


class Engine:
    """A token processor with running requests."""

    def __init__(self, name: str, load: Load) -> None:
        self.load = load
        channel = "spec" if load.top is None else "spec_topk_target"
        case = processors.LoadCase(channel, 1 + (load.top or 0), load.accepted, load.streams)
        module = processors.token_processor_module()
        cls = processors.processor_class(name, module)
        self.work = processors.Load(module, cls, case)
        self.processor = self.work.processor
        self.is_ours = hasattr(self.processor, "parts") and name == OURS
        if not isinstance(self.processor, cls):
            raise Unavailable("the plug-in fell back")
        self.tensors = [processors.flat_view(self.processor.output_tokens)]
        if load.top is not None:
            scores, ranks = self.processor.output_scores, self.processor.output_ranks
            self.tensors += [processors.flat_view(scores), processors.flat_view(ranks)]

    def prepare(self, message: Message) -> Any:
        """A step as it comes from the queue: a `Step` for ours, else what the get op writes."""
        load = self.load
        if self.is_ours:
            counts, channel = [load.accepted] * load.streams, self.processor.channel
            if load.top is None:
                return Step.from_arrays(channel, counts, message.ids)
            return Step.from_arrays(channel, counts, *message, flag=3)
        tokens = self.tensors[0].copy()
        if load.top is None:
            tokens[2 + 256 :].reshape(-1, 6)[: load.streams, : load.accepted] = message.ids.reshape(
                load.streams, load.accepted
            )
            return (tokens,)
        scores, ranks = self.tensors[1].copy(), self.tensors[2].copy()
        slots, columns = (load.streams, load.accepted, -1), message.ids.shape[1]
        part = slice(load.streams), slice(load.accepted), slice(columns)
        tokens[3 + 512 :].reshape(-1, 6, 21)[part] = message.ids.reshape(slots)
        scores.reshape(-1, 6, 21)[part] = message.scores.reshape(slots)
        ranks.reshape(-1, 6)[part[:2]] = message.ranks.reshape(load.streams, load.accepted)
        return tokens, scores, ranks

    def step(self, prepared: Any) -> list[Any]:
        """From the queue's step to results."""
        if self.is_ours:
            self.processor.parts.steps.process(prepared)
        else:
            for tensor, numbers in zip(self.tensors, prepared, strict=True):
                tensor[:] = numbers
            self.work.step()
        results: list[Any] = self.work.sink.last
        return results


def _numbers(name: str, load: Load, read: bool = False) -> Contender:
    engine = Engine(name, load)

    def step(prepared: Any) -> list[Any]:
        results = engine.step(prepared)
        if read:
            for result in results:
                _ = result.outputs.top_logprobs
        return results

    def answers(results: list[Any]) -> list[Answer]:
        return [Answer(one.outputs.token_ids, None, _rows(one.outputs.top_logprobs, load)) for one in results]

    return Contender(engine.prepare, engine.work.reset, step, answers)


def _rows(top: Any, load: Load) -> Any:
    if load.top is None:
        return None
    return [list(zip(ids, scores, strict=True)) for ids, scores in zip(top[0], top[1], strict=True)]


def _texts(name: str, load: Load, model: Model, whole: bool) -> Contender:
    """FastDeploy's two processes, one after the other: its engine's results, and its API server's chunks."""
    if not os.environ.get("FD_POSTPROC_FASTDEPLOY"):
        raise Unavailable("texts are made by FastDeploy's serving code: set FD_POSTPROC_FASTDEPLOY")
    engine = Engine(name, load)
    module = importlib.import_module("fastdeploy.entrypoints.openai.serving_chat")
    utils = importlib.import_module("fastdeploy.entrypoints.openai.utils")
    processor = importlib.import_module("fastdeploy.input.text_processor").TextProcessor(str(model.folder))
    chunk = _chunks(module)
    handler = object.__new__(module.OpenAIServingChat)
    handler.engine_client = type("Client", (), {"data_processor": processor})
    packb = importlib.import_module("msgpack").packb

    def scores_of(top: Any) -> Any:
        return handler._create_chat_logprobs(top, True, load.top, True)

    complete = functools.partial(
        processor.process_response_dict, stream=True, include_stop_str_in_output=False
    )
    if name == OURS:
        chunk, scores_of, complete = _lane(chunk, handler, processor, load)
        from fd_postproc.fastdeploy.engine.results._results import Messages

        messages = Messages(engine.processor.plan)

        def pack(results: list[Any]) -> bytes:
            return bytes(messages.pack([[one] for one in results]))
    else:

        def pack(results: list[Any]) -> bytes:
            return bytes(packb([[one.to_dict()] for one in results]))

    def step(prepared: Any) -> list[Any]:
        made = []
        for (result,) in utils.msgpack.unpackb(pack(engine.step(prepared))):
            complete(result)
            logprobs = None
            if load.top is not None:
                logprobs = scores_of(result["outputs"]["top_logprobs"])
            text = result["outputs"]["text"]
            made.append(chunk(text, logprobs) if whole else (text, logprobs))
        return made

    def begin() -> None:
        engine.work.reset()
        processor.decode_status.clear()

    ids = {model.text([one]): one for one in reversed(model.usable)}

    def answers(made: list[Any]) -> list[Answer]:
        chunks = made if whole else [chunk(*one) for one in made]
        choices = [json.loads(one)["choices"][0] for one in chunks]
        return [Answer(None, one["delta"]["content"], _named(one["logprobs"], ids)) for one in choices]

    return Contender(engine.prepare, begin, step, answers)


def _lane(stock: Any, handler: Any, processor: Any, load: Load) -> tuple[Any, Any, Any]:
    """The same as the steady lane does it: what makes a chunk, log-probabilities, and a result's text."""
    from fd_postproc.fastdeploy.api.chunks._chunks import ChatScores, Template
    from fd_postproc.fastdeploy.api.chunks.float_style import float_style
    from fd_postproc.fastdeploy.api.chunks.token_spelling import CHAT_TEXTS
    from fd_postproc.fastdeploy.api.text.views import views_of

    style, texts = float_style(), CHAT_TEXTS(handler)
    views = views_of(processor)
    assert style is not None
    assert views is not None
    assert views.plain is not None
    template = Template(
        stock("", None), ["content", "arrival_time", "logprobs"], ["", 1.2345678, None], style
    )
    return (
        lambda text, scores: template.text([text, 1.2345678, scores]),
        lambda top: ChatScores.of(top, load.top, texts),
        views.plain,
    )


def _chunks(module: Any) -> Callable[[str, Any], str]:
    """What makes a chunk's JSON, as FastDeploy's generator does, of the classes that its module names."""
    empty = dict.fromkeys(("tool_calls", "prompt_token_ids", "completion_token_ids", "completion_tokens"))
    whole = module.ChatCompletionStreamResponse(
        id="chatcmpl-5f0d3a52", object="chat.completion.chunk", created=1, choices=[], model="default"
    )

    def chunk(text: str, logprobs: Any) -> str:
        delta = module.DeltaMessage(reasoning_content="", **empty)
        delta.content = text
        whole.choices = [
            module.ChatCompletionResponseStreamChoice(
                index=0, delta=delta, logprobs=logprobs, draft_logprobs=None, sampling_mask=None,
                arrival_time=1.2345678, speculate_metrics=None,
            )
        ]  # fmt: skip
        told: str = whole.model_dump_json(exclude_unset=True)
        return told

    return chunk


def _named(logprobs: dict[str, Any] | None, ids: dict[str, int]) -> Any:
    """A chat's log-probabilities, whose tokens are texts, as rows of ids."""
    if logprobs is None:
        return None
    return [
        [(ids[one["token"]], one["logprob"]) for one in [token, *token["top_logprobs"]]]
        for token in logprobs["content"]
    ]
