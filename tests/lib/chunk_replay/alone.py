"""Plays recorded streams without FastDeploy: the restated generators, with its parts or with ours."""

import gzip
import json
import marshal
from functools import cache, partial

from fd_postproc.fastdeploy.api.chunks._chunks import (
    Texts,
    Unknown,
    chat_logprobs,
    completion_logprobs,
)
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from fd_postproc.fastdeploy.api.chunks.token_spelling import chat_spelling, completion_spelling
from tests.lib.chunk_replay.cases import FOLDER
from tests.restated.api import models
from tests.restated.api.answers import ChatAnswer, CompletionAnswer
from tests.restated.api.logprobs import Steps
from tests.restated.api.streams import PARTS, ChatStream, CompletionStream, Processed, Stock

MOST_COLUMNS = 1 << 20  # the vocabulary: more than any row has


@cache
def texts_of(name):
    """What a recorded tokenizer says, by token id: its text, the raw token, the text of the bare id."""
    with gzip.open(FOLDER / "texts" / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        return {int(token): said for token, said in json.load(file).items()}


@cache
def echoed_prompts():
    """Texts of prompts that were given as token ids, by case."""
    with gzip.open(FOLDER / "texts" / "prompts.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


class Tokenizer:
    """A data processor's side of log-probabilities, from recorded texts."""

    def __init__(self, server):
        hf = "-hf" if "FD_USE_HF_TOKENIZER" in server["env"] else ""
        self.name, self.tokenizer = server["tokenizer"] + hf, self

    def _said(self, token, which):
        text = texts_of(self.name)[token][which]
        if text is None:
            raise ValueError(f"token id {token} is refused")
        return text

    def process_logprob_response(self, token_ids, **options):
        if isinstance(token_ids, list):
            (token,) = token_ids
            return self._said(token, 0)
        return self._said(token_ids, 2)

    def convert_ids_to_tokens(self, token):
        return self._said(token, 1)

    def steps(self):
        return Steps(
            lambda token: self.process_logprob_response([token]),
            self.convert_ids_to_tokens,
            self.process_logprob_response,
        )


@cache
def stand_ins():
    """For the restated classes, by name."""
    style = float_style()
    stood_in = {cls: None for cls in vars(models).values() if hasattr(cls, "model_fields")}
    return {name: models_of(getattr(models, name), stood_in, style) for name in PARTS}


class Ours(Stock):
    """Our parts, which the restated ones stand behind as FastDeploy's do."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer.steps())
        vars(self).update(stand_ins())
        self.chat = Texts(chat_spelling(tokenizer))
        self.completion = Texts(completion_spelling(tokenizer))

    def chat_logprobs(self, top, columns, texts):
        try:
            return chat_logprobs(
                top, columns, self.chat if texts else None, models.LogProbEntry, self.LogProbs
            )
        except (Unknown, ValueError):
            return super().chat_logprobs(top, columns, texts)

    def completion_logprobs(self, top, columns):
        own = partial(super().completion_logprobs, top, columns)
        try:
            return completion_logprobs(top, columns, self.completion, models.CompletionLogprobs, own)
        except (Unknown, ValueError):
            return own()


def tool_calls(calls):
    """As a parser gives them: models."""
    if calls is None:
        return None
    return [(models.DeltaToolCall if "index" in call else models.ToolCall)(**call) for call in calls]


def results_of(case):
    """A case's results, as the data processor left them."""
    processed = iter(case["processed"])
    identity = case["derived"]["request_id"]
    for frame in marshal.loads(marshal.dumps(case["frames"])):  # a copy
        for group in frame:
            if group[-1]["request_id"].rsplit("_", 1)[0] != identity:
                continue
            for result in group:
                left = next(processed, None)
                if left is None:
                    yield result
                elif "raises" in left:
                    error = ValueError(left["raises"])
                    yield error if case["path"].endswith("chat/completions") else Processed(result, error)
                else:
                    calls = {"tool_calls": tool_calls(left["tool_calls"])} if "tool_calls" in left else {}
                    result["outputs"].update(left, **calls)
                    yield result


def play(case, parts):
    """The events of a streamed case, written with some parts."""
    return list(_writer(case, ChatStream, CompletionStream, parts).events(results_of(case)))


def answer(case, parts):
    """The model of a case that is not streamed, made of some parts."""
    return _writer(case, ChatAnswer, CompletionAnswer, parts).answer(results_of(case))


def _writer(case, of_chat, of_completion, parts):
    cls = of_chat if case["path"].endswith("chat/completions") else of_completion
    derived = dict(case["derived"])
    derived["prompt_texts"] = echoed_prompts().get(case["name"], derived["prompt_tokens"])
    return cls(json.loads(case["request_body"]), derived, MOST_COLUMNS, parts)
