"""Recorded answers of FastDeploy's API server, made again of our parts: byte for byte.

That FastDeploy's own generators get there from the engine's messages: real_tree/test_api.py.
"""

import functools
import json
import math
import random
import typing

import pydantic
import pytest

from fd_postproc.fastdeploy import notes
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.chunks._chunks import Texts, chat_logprobs, completion_logprobs
from tests.lib.chunk_replay.cases import ROLLOUTS, cases
from tests.restated.api import models
from tests.restated.api.streams import PARTS

from . import test_models

OURS = vars(test_models.OURS)
STOCK = {name: getattr(models, name) for name in PARTS}
ROOTS = {
    ("chat/completions", True): models.ChatCompletionStreamResponse,
    ("completions", True): models.CompletionStreamResponse,
    ("chat/completions", False): models.ChatCompletionResponse,
    ("completions", False): models.CompletionResponse,
}
SET_LATER = ("content", "completion_token_ids", "completion_tokens", "finish_reason", "usage", "metrics")
"""Fields that FastDeploy's generators set once a part is made."""


def all_recorded():
    """Every event and body with parts in it: its class, whether it was streamed, its JSON, what that says."""
    for folder in (cases(), cases(ROLLOUTS)):
        for case in folder.values():
            streamed = case["dimensions"]["stream"]
            for chunk in case["output"]["chunks"]:
                text = chunk.removeprefix("data: ").strip()
                told = {} if text in ("[DONE]", "null") else json.loads(text)
                if told and "error" not in told:
                    yield ROOTS[case["path"].removeprefix("/v1/"), streamed], streamed, text, told


class Maker:
    """Makes answers of their JSON.

    Parameters
    ----------
    parts : dict
        Classes by their names.
    """

    def __init__(self, parts):
        self.parts, self.draw = parts, random.Random(1)
        self.made_of = {models.Logprob: self.prompt_token, models.DeltaToolCall: self.tool_call}
        self.made_of[models.CompletionLogprobs] = self.completion if parts is OURS else self.plain_completion
        if parts is OURS:
            self.made_of[models.LogProbs] = self.chat

    def model(self, cls, told):
        fields = cls.model_fields
        values = {name: self.value(fields[name].annotation, value) for name, value in told.items()}
        later = [name for name in SET_LATER if name in values and self.draw.random() < 0.5]
        later = [name for name in later if not fields[name].is_required()]
        made = self.parts.get(cls.__name__, cls)(
            **{name: value for name, value in values.items() if name not in later}
        )
        for name in later:
            setattr(made, name, values[name])
        return made

    def value(self, annotation, told):
        """A value of a field, as FastDeploy's code gives it."""
        kind = kind_of(annotation)
        if told is None or kind is None:
            return score_of(told) if annotation is float else told
        if isinstance(told, list):
            return [self.value(annotation, one) for one in told]
        make = self.made_of.get(kind)
        return self.model(kind, told) if make is None else make(told)

    @staticmethod
    def prompt_token(told):
        return {int(token): models.Logprob(**one) for token, one in told.items()}

    @staticmethod
    def tool_call(told):
        return (models.DeltaToolCall if "index" in told else models.ToolCall)(**told)

    def chat(self, told):
        said = []
        rows = [[entry, *entry["top_logprobs"]] for entry in told["content"]]
        top = [
            [[said_as(said, one["token"], bytes(one["bytes"]).decode()) for one in row] for row in rows],
            [[score_of(one["logprob"]) for one in row] for row in rows],
            [1] * len(rows),
        ]
        texts = Texts(said.__getitem__)
        return chat_logprobs(top, 1 << 20, texts, models.LogProbEntry, self.parts["LogProbs"])

    @staticmethod
    def plain_completion(told):
        scores = [score_of(one) for one in told["token_logprobs"]]
        return models.CompletionLogprobs(**{**told, "token_logprobs": scores})

    def completion(self, told):
        said, top = [], [[], [], []]
        for text, score, shown in zip(
            told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
        ):
            others = [one for one in shown.items() if repr(one) != repr((text, score))]
            row = [(text, score), *others]
            top[0].append([said_as(said, one, "") for one, _ in row])
            top[1].append([score_of(its) for _, its in row])
            top[2].append(1)
        return completion_logprobs(
            top, 1 << 20, Texts(said.__getitem__), models.CompletionLogprobs, pytest.fail
        )


@functools.cache
def kind_of(annotation):
    """The model within a field's type, or None."""
    if issubclass(type(annotation), type):  # Python 3.10 takes list[int] for an instance of it
        is_model = issubclass(annotation, (pydantic.BaseModel, models.Logprob))
        return annotation if is_model else None
    return next(filter(None, map(kind_of, typing.get_args(annotation))), None)


def said_as(said, *texts):
    """The id of a token that says this."""
    said.append(texts)
    return len(said) - 1


def in_order(text):
    """What a JSON text says, and in which order."""
    return json.loads(text, object_pairs_hook=list)


def score_of(told):
    return math.nan if told is None else told


@pytest.mark.parametrize("parts", [OURS, STOCK], ids=["ours", "FastDeploy's"])
def test_every_recorded_answer_is_made_byte_for_byte(parts):
    notes.forget()
    before = _chunks.written()
    maker, stock, count = Maker(parts), Maker(STOCK), {True: 0, False: 0}
    for root, streamed, text, told in all_recorded():
        made = maker.model(root, told)
        count[streamed] += 1
        if streamed:
            shown = made.model_dump_json(exclude_unset=True)
            if shown != text:  # pydantic's versions write 1e38 in two ways
                assert shown == stock.model(root, told).model_dump_json(exclude_unset=True)
                assert in_order(shown) == in_order(text)
            continue
        dumped = json.dumps(made.model_dump(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        assert dumped == text
        assert json.loads(made.model_dump_json()) == told  # which FastDeploy logs
    assert count[True] > 1500
    assert count[False] > 90
    written, left = _chunks.written() - before, notes.noted()
    assert (written > 1500) is (parts is OURS)
    assert sum(left.values()) <= written / 100, left
