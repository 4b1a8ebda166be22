"""This module makes what answers show of log-probabilities, in place of FastDeploy's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..gate.judgements import gate
from ..gate.seams import NotPlain
from .chunks._chunks import ChatScores, CompletionScores, Scores
from .chunks.token_spelling import CHAT_TEXTS, COMPLETION_TEXTS

SEAM = "api answers"
_BUILD = "_build_logprobs_response"
_METHODS = {
    "serving_chat": ("OpenAIServingChat", "_create_chat_logprobs"),
    "serving_completion": ("OpenAIServingCompletion", "_create_completion_logprobs"),
}

ScoresOf = Callable[[Any], Scores | None]
"""From a result's log-probabilities to what is shown; None where nothing is.  It raises as `Scores`."""


class Scoring:
    """The log-probabilities of the answers of ``serving_chat`` or ``serving_completion``."""

    def __init__(self, module: Any) -> None:
        name = module.__name__.rpartition(".")[2]
        self._module, (self._owner, self._create) = module, _METHODS[name]
        self._is_chat = name == "serving_chat"
        self._texts_of = CHAT_TEXTS if self._is_chat else COMPLETION_TEXTS
        self._known: tuple[tuple[Any, ...], str | None] | None = None

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
        reason = self._why_not()
        if reason is None and not vars(handler).keys().isdisjoint((self._create, _BUILD)):
            reason = f"a method was set on the {self._owner}"
        if reason is not None:
            raise NotPlain(reason)
        if columns == -1:
            columns = handler.engine_client.ori_vocab_size
        if not self._is_chat:
            completions = self._texts_of(handler)
            return lambda top: CompletionScores.of(top, columns, completions)
        texts = self._texts_of(handler) if request.include_logprobs_decode_token else None
        return lambda top: ChatScores.of(top, columns, texts)

    def _why_not(self) -> str | None:
        """Why FastDeploy's own methods have to be called; None if ours do the same."""
        cls = vars(self._module)[self._owner]
        now = tuple(getattr(cls, name, None) for name in (self._create, _BUILD))
        if self._known is None or self._known[0] != now:
            names = f"{self._owner}.{self._create}", f"{self._owner}.{_BUILD}"
            new = [one.text for one in gate.judge(SEAM, self._module).unknown if one.function in names]
            self._known = now, " and ".join(new) or None
        return self._known[1]
