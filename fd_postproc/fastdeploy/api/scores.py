"""Reads what a request asks for of log-probabilities, and makes it in place of FastDeploy's methods."""

from __future__ import annotations

import importlib
from typing import Any

from ..gate.judgements import gate
from .chunks._chunks import ChatScores, CompletionScores, PromptScores, Scores
from .chunks.token_spelling import CHAT_TEXTS, COMPLETION_TEXTS, PROMPT_TEXTS, TextsOf

SEAM = "api answers"
OF_PROMPTS = ("_build_prompt_logprobs", "_make_logprob_dict", "clamp_prompt_logprobs", "__post_init__")
"""Functions that ours stands for where it makes a prompt's log-probabilities."""


def are_arrays(values: Any) -> bool:
    """Whether a list has NumPy's arrays, as our engine sends them."""
    return type(values) is list and type([*values, None][0]) is importlib.import_module("numpy").ndarray


def why_not(module: Any, names: tuple[str, ...]) -> str | None:
    """Which functions of these names in a serving module are not known; None: all are."""
    unknown = gate.judge(SEAM, module).unknown
    new = [one.text for one in unknown if one.function.rpartition(".")[2].rpartition(":")[2] in names]
    return "; ".join(dict.fromkeys(new)) or None


class Asked:
    """What a request asks for of log-probabilities.

    Parameters
    ----------
    handler : OpenAIServingChat or OpenAIServingCompletion
    request : ChatCompletionRequest or CompletionRequest

    Attributes
    ----------
    columns : int or None
        Alternatives that an answer shows of each token; None: it shows no log-probabilities.
    prompt_columns : int or None
        Likewise of the prompt's tokens.
    """

    KIND: type[Scores]
    TEXTS: TextsOf
    FUNCTIONS: tuple[str, ...]
    """Those that ours stands for where it makes an answer's log-probabilities."""

    def __init__(self, handler: Any, request: Any) -> None:
        columns, self.prompt_columns = self._columns(request), request.prompt_logprobs
        if columns == -1:
            columns = handler.engine_client.ori_vocab_size
        if self.prompt_columns == -1:
            self.prompt_columns = handler.engine_client.ori_vocab_size
        self.columns = columns if type(columns) is int and columns >= 0 else None
        self._texts = self._prompt_texts = None
        shows_texts = request.include_logprobs_decode_token
        if self.columns is not None and (shows_texts or self.TEXTS is COMPLETION_TEXTS):
            self._texts = self.TEXTS(handler)
        if self.prompt_columns is not None and shows_texts:
            self._prompt_texts = PROMPT_TEXTS(handler)

    @staticmethod
    def _columns(request: Any) -> Any:
        """The alternatives as the request names them."""
        raise NotImplementedError

    def none(self) -> Scores:
        """Log-probabilities of no token yet."""
        return self.KIND(self.columns, self._texts)

    def scores(self, top: Any) -> Scores | None:
        """What is shown of a result's log-probabilities; None: nothing.  It raises as `Scores.add`."""
        return self.KIND.of(top, self.columns, self._texts)

    def prompt(self, tensors: Any) -> PromptScores:
        """What is shown of a prompt's, from its arrays.  It raises as `PromptScores.of`."""
        return PromptScores.of(tensors, self.prompt_columns, self._prompt_texts)


class AskedOfChat(Asked):
    """What a chat completion asks for."""

    KIND, TEXTS = ChatScores, CHAT_TEXTS
    FUNCTIONS = "_create_chat_logprobs", "_build_logprobs_response"

    @staticmethod
    def _columns(request: Any) -> Any:
        return request.top_logprobs if request.logprobs else None


class AskedOfCompletion(Asked):
    """What a completion asks for."""

    KIND, TEXTS = CompletionScores, COMPLETION_TEXTS
    FUNCTIONS = "_create_completion_logprobs", "_build_logprobs_response"

    @staticmethod
    def _columns(request: Any) -> Any:
        return request.logprobs
