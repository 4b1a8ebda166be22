"""One chunk of a streamed answer in the API server: log-probabilities, its parts, and the JSON of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy

from .cases import Comparison, Ready, Unavailable, check, timed

ABOUT = (
    "a result -> the JSON of its chunk; peers: FastDeploy's way restated, and FastDeploy's own code where it "
    "can be imported; floor: the finished bytes become a str"
)
REFERENCE = "floor"
BASELINE = "FastDeploy's way"

VOCABULARY = 2000
CHUNKS = 32  # different ones, in turn

COLUMNS, TOKENS = 20, 2


def comparisons() -> Iterator[Comparison]:
    ways = {name: partial(_make, parts) for name, parts in WAYS.items()}
    yield Comparison(f"chat, top_logprobs {COLUMNS}, {TOKENS} tokens", {**ways, "floor": _floor})


class Processor:
    """Says what token ids are, at the cost of a list's item: a real tokenizer takes microseconds."""

    def __init__(self) -> None:
        draw = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz éß日本"
        self.texts = [" " + "".join(draw.choices(letters, k=draw.randint(1, 8))) for _ in range(VOCABULARY)]
        self.tokenizer = self

    def process_logprob_response(self, token_ids: Any, **options: Any) -> str:
        return self.texts[token_ids[0]]

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.texts[token]


def tops() -> list[Any]:
    """Log-probabilities of some results; float32 numbers, as they come from a model."""
    draw, width = random.Random(2), COLUMNS + 1
    made: list[Any] = []
    for _ in range(CHUNKS):
        ids = [[draw.randrange(VOCABULARY) for _ in range(width)] for _ in range(TOKENS)]
        scores = [[float(numpy.float32(-draw.expovariate(0.3))) for _ in range(width)] for _ in range(TOKENS)]
        made.append([ids, scores, [1] * TOKENS])
    return made


def chunk_of(parts: Any) -> Callable[[Any], str]:
    """What makes a chunk of a result, as FastDeploy's generator does in its steady state."""
    chunk = parts.ChatCompletionStreamResponse(
        id="chatcmpl-5f0d3a52-4f2b-4c7e-9d0c-6c2f1f5d3b11",
        object="chat.completion.chunk",
        created=1_763_740_800,
        choices=[],
        model="default",
    )

    def chat(top: Any) -> str:
        logprobs = None if top is None else parts.chat_logprobs(top, COLUMNS, True)
        delta = parts.DeltaMessage(
            reasoning_content="",
            tool_calls=None,
            prompt_token_ids=None,
            completion_token_ids=None,
            completion_tokens=None,
        )
        delta.content = " hello world"
        entry = parts.ChatCompletionResponseStreamChoice(
            index=0,
            delta=delta,
            logprobs=logprobs,
            draft_logprobs=None,
            sampling_mask=None,
            arrival_time=1.2345678,
            speculate_metrics=None,
        )
        chunk.choices = [entry]
        return chunk.model_dump_json(exclude_unset=True)

    return chat


# ---- the ways --------------------------------------------------------------------------------------------


def _restated() -> Any:
    try:
        from tests.restated.api.logprobs import Steps
        from tests.restated.api.streams import Stock
    except ModuleNotFoundError as error:
        raise Unavailable(f"needs {error.name}: pip install {error.name}") from None
    processor = Processor()
    return Stock(
        Steps(
            lambda token: processor.process_logprob_response([token]),
            processor.convert_ids_to_tokens,
            lambda token: "",
        )
    )


class _Lane:
    """The steady lane: a template, cut out of a chunk of FastDeploy's."""

    def chunk(self) -> Callable[[Any], str]:
        from fd_postproc.fastdeploy.api.chunks._chunks import ChatScores, Template, Texts
        from fd_postproc.fastdeploy.api.chunks.float_style import float_style
        from fd_postproc.fastdeploy.api.chunks.token_spelling import chat_spelling

        style, texts = float_style(), Texts(chat_spelling(Processor()))
        if style is None:
            raise Unavailable("needs a pydantic whose floats are printed in a way that is known")
        keys = ["index", "content", "arrival_time", "logprobs", "draft_logprobs"]
        values = [0, " hello world", 1.2345678]
        template = Template(chunk_of(_restated())(None), keys, [*values, None, None], style)
        return lambda top: template.text([*values, ChatScores.of(top, COLUMNS, texts), None])


class _Parts:
    """FastDeploy's own classes and methods."""

    def __init__(self) -> None:
        import importlib

        from fd_postproc.fastdeploy.report import import_fastdeploy
        from tests.restated.api.streams import PARTS

        try:
            import_fastdeploy()
            protocol, serving = (
                importlib.import_module(f"fastdeploy.entrypoints.openai.{name}")
                for name in ("protocol", "serving_chat")
            )
        except ImportError as error:
            raise Unavailable(f"needs FastDeploy, or FD_POSTPROC_FASTDEPLOY: {error}") from None
        for name in PARTS:
            setattr(self, name, getattr(protocol, name))
        handler = object.__new__(serving.OpenAIServingChat)
        handler.engine_client = type("Client", (), {"data_processor": Processor()})
        self.chat_logprobs: Any = lambda top, columns, texts: handler._create_chat_logprobs(
            top, True, columns, texts
        )


WAYS: dict[str, Callable[[], Any]] = {
    "fd_postproc": _Lane,
    BASELINE: _restated,
    "FastDeploy itself": _Parts,
}


def _right() -> list[str]:
    """The chunks, made the restated way, which is held to recorded answers."""
    return list(map(chunk_of(_restated()), tops()))


def _out_of_a_message(given: list[Any]) -> list[Any]:
    """Log-probabilities as ours has them in the API server: packed."""
    import msgpack

    from fd_postproc.fastdeploy.api.chunks._chunks import unpack

    return [unpack(msgpack.packb({"top_logprobs": top}))["top_logprobs"] for top in given]


def _make(parts: Callable[[], Any]) -> Ready:
    made_of, inputs = parts(), tops()
    is_ours = isinstance(made_of, _Lane)
    inputs = _out_of_a_message(inputs) if is_ours else inputs
    make = made_of.chunk() if is_ours else chunk_of(made_of)
    right = _right()
    check(list(map(make, inputs)) == right, "another chunk")
    following = cycle(inputs).__next__
    return Ready(timed(lambda: make(following())), len(right[0]))


def _floor() -> Ready:
    texts = [text.encode() for text in _right()]
    following = cycle(texts).__next__
    return Ready(timed(lambda: following().decode()), len(texts[0]))
