"""This module makes what answers show of log-probabilities, in place of FastDeploy's methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..gate.judgements import gate
from ..gate.seams import NotPlain
from .chunks._chunks import ChatScores, CompletionScores, PromptScores, Scores
from .chunks.token_spelling import CHAT_TEXTS, COMPLETION_TEXTS, PROMPT_TEXTS

SEAM = "api answers"
_BUILD = "_build_logprobs_response"
_OF_PROMPTS = ("_build_prompt_logprobs", "_make_logprob_dict", "clamp_prompt_logprobs", "__post_init__")
_METHODS = {
    "serving_chat": ("OpenAIServingChat", "_create_chat_logprobs"),
    "serving_completion": ("OpenAIServingCompletion", "_create_completion_logprobs"),
}

ScoresOf = Callable[[Any], Scores | None]
"""From a result's log-probabilities to what is shown; None where nothing is.  It raises as `Scores`."""

PromptOf = Callable[[Any], PromptScores]
"""From the arrays of a prompt's log-probabilities to what is shown.  It raises as `PromptScores.of`."""


def are_arrays(values: Any) -> bool:
    """Whether a list has NumPy's arrays, as our engine sends them."""
    return type(values) is list and type([*values, None][0]) is importlib.import_module("numpy").ndarray


class Judged:
    """Whether functions of a serving module that ours stands for are known: they may be wrapped later."""

    def __init__(self, module: Any, cls: Any) -> None:
        self._module, self._cls = module, cls
        self._known: dict[tuple[str, ...], tuple[list[Any], str | None]] = {}

    def check(self, handler: Any, names: tuple[str, ...]) -> None:
        """Raise NotPlain if FastDeploy's functions of these names have to be called, not ours."""
        holders = self._cls, self._module, getattr(self._module, "ChatResponseProcessor", None)
        now = [getattr(holder, name, None) for holder in holders for name in names]
        if names not in self._known or self._known[names][0] != now:
            unknown = gate.judge(SEAM, self._module).unknown
            new = [one.text for one in unknown if one.function.rpartition(".")[2].rpartition(":")[2] in names]
            self._known[names] = now, "; ".join(dict.fromkeys(new)) or None
        reason = self._known[names][1]
        if reason is None and not vars(handler).keys().isdisjoint(names):
            reason = "a method was set on a handler"
        if reason is not None:
            raise NotPlain(reason)


class Scoring:
    """The log-probabilities of the answers of ``serving_chat`` or ``serving_completion``."""

    def __init__(self, module: Any) -> None:
        name = module.__name__.rpartition(".")[2]
        self._module, (self._owner, self._create) = module, _METHODS[name]
        self._is_chat = name == "serving_chat"
        self._texts_of = CHAT_TEXTS if self._is_chat else COMPLETION_TEXTS
        self._judged = Judged(module, vars(module)[self._owner])

    def of(self, handler: Any, request: Any) -> ScoresOf | None:
        """What makes a request's log-probabilities; None if it asks for none.

        Raises
        ------
        NotPlain
            If somebody has replaced FastDeploy's methods, or if their code is not known.
        """
        columns = request.top_logprobs if self._is_chat else request.logprobs
        if not request.logprobs if self._is_chat else columns is None:
            return None
        self._judged.check(handler, (self._create, _BUILD))
        if columns == -1:
            columns = handler.engine_client.ori_vocab_size
        if not self._is_chat:
            completions = self._texts_of(handler)
            return lambda top: CompletionScores.of(top, columns, completions)
        texts = self._texts_of(handler) if request.include_logprobs_decode_token else None
        return lambda top: ChatScores.of(top, columns, texts)

    def of_prompt(self, handler: Any, request: Any) -> PromptOf | None:
        """What makes those of a request's prompt; None if it asks for none.  It raises as `of`."""
        columns = request.prompt_logprobs
        if columns is None:
            return None
        self._judged.check(handler, _OF_PROMPTS)
        if columns == -1:
            columns = handler.engine_client.ori_vocab_size
        texts = PROMPT_TEXTS(handler) if request.include_logprobs_decode_token else None
        return lambda tensors: PromptScores.of(tensors, columns, texts)
