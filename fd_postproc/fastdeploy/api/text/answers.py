"""Answers that grow by new ids, in the state that FastDeploy's ``ids2tokens`` keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....support.known import Known
from ...events.guard import Guard
from ...events.log import api_log
from ..chunks._chunks import BY_BYTE
from . import mends
from .answer_text import AnswerText
from .joined_results import are_expected, withdraw
from .ways import OF_IDS, REPLACEMENT, Tokenizers, decode_token

STATE = 4
"""Items of an answer's state: two offsets, ids, text; three with ``FD_USE_HF_TOKENIZER``."""


class Answers:
    """The answers of a class of data processors.

    The state of an answer stays FastDeploy's list, for which its other methods look: two offsets into the
    ids, the ids, the text.  An `AnswerText` may stand for the text.

    Parameters
    ----------
    stock : function
        The ``ids2tokens`` that FastDeploy's class has.
    envs : module or None
        ``fastdeploy.envs``.

    Attributes
    ----------
    guard : Guard
        Of the seam "api detokenising".
    prepares : list of callable
        Called with a data processor that was just made, in a process that serves.
    """

    def __init__(self, stock: Any, envs: Any) -> None:
        self.stock, self._envs = stock, envs
        self.ways_of = ways_of = Tokenizers().ways_of
        self.prepares: list[Callable[[Any], Any]] = [lambda processor: ways_of(processor.tokenizer)]
        self.guard = Guard("api detokenising", api_log, when_off=withdraw)

    def are_left_to_fastdeploy(self) -> bool:
        """Whether new answers are FastDeploy's: reading the environment takes longer than decoding."""
        return bool(getattr(self._envs, "FD_USE_HF_TOKENIZER", False))

    def are_texts_of_engine(self) -> bool:
        """Whether the engine makes the texts."""
        return bool(getattr(self._envs, "FD_ENABLE_RETURN_TEXT", False))

    def begun(self, answers: dict[Any, Any], task_id: Any) -> list[Any] | None:
        """The state of a new answer; None if it is FastDeploy's."""
        if self.are_left_to_fastdeploy():
            return None
        answers[task_id] = state = [0, 0, [], ""]
        return state

    def advance(self, tokenizer: Any, state: list[Any], new_ids: list[int], releases: str = "") -> str:
        """Add new ids to an answer's state; return the new text, which is not added.

        Of several ids FastDeploy shows nothing until the last one completes a character.  Those that a stream
        interval has joined come one by one: else an answer that ends within a character would lack more text.
        `releases`: the kind of mend that gives characters that are not complete; empty: they wait.
        """
        text: str
        if len(new_ids) > 1 and are_expected():
            text = "".join([self.advance(tokenizer, state, [one]) for one in new_ids[:-1]])
            return text + self.advance(tokenizer, state, new_ids[-1:], releases)
        ids = state[2]
        ids.extend(new_ids)
        try:
            text, state[0], state[1] = self._decoded(tokenizer, ids, state[0], state[1], releases != "")
        except OF_IDS:  # an id that is none: as FastDeploy raises it, or takes it
            text, state[0], state[1] = tokenizer.decode_token(ids, state[0], state[1])
        if REPLACEMENT in text:
            self._count(tokenizer, text, releases)
        return text

    def _decoded(
        self, tokenizer: Any, ids: list[int], prefix: int, read: int, to_the_end: bool
    ) -> tuple[str, int, int]:
        decode, new_text = self.ways_of(tokenizer)
        new = None if new_text is None else new_text(ids, prefix, read, to_the_end)
        if new is not None:
            return new
        if decode is not None:
            return decode_token(decode, ids, prefix, read, to_the_end)
        text: tuple[str, int, int] = tokenizer.decode_token(ids, prefix, read)
        return text

    def _count(self, tokenizer: Any, text: str, releases: str) -> None:
        new_text = self.ways_of(tokenizer).new_text
        if releases and REPLACEMENT in text[-2:]:
            mends.count(releases)
        elif getattr(getattr(new_text, "__self__", None), "errors", None) == BY_BYTE:
            mends.count(mends.BROKEN)

    def hold_text(self, tokenizer: Any, state: list[Any], more: Sequence[int] = ()) -> bool:
        """Whether text of an answer, or of that and `more` ids, waits for the rest of a character."""
        prefix, read, ids = state[:3]
        if more:
            ids = [*ids, *more]
        if read >= len(ids):
            return False
        try:
            now, to_the_end = (
                self._decoded(tokenizer, ids, prefix, read, releases)[0] for releases in (False, True)
            )
        except OF_IDS:  # FastDeploy's method raises it
            return False
        return now != to_the_end

    def split(self, tokenizer: Any, state: list[Any]) -> list[int]:
        """Take the last ids from an answer, if only they keep text before them from being given."""
        prefix, read, ids = state[:3]
        for count in range(len(ids) - 1, read, -1):
            if self._decoded(tokenizer, ids[:count], prefix, read, False)[0]:
                rest: list[int] = ids[count:]
                del ids[count:]
                return rest
        return []

    def ids2tokens(self, processor: Any, token_id: Any, task_id: Any, releases: str = "") -> Any:
        """FastDeploy's method: the new text, all ids, and the text before."""
        answers = processor.decode_status
        state = answers.get(task_id)
        if state is not None and type(state[-1]) is AnswerText:
            state[-1] = str(state[-1])
        guard = self.guard
        if not guard.is_on or type(token_id) is not list or (state is not None and len(state) != STATE):
            return self.stock(processor, token_id, task_id)
        before = place(state)
        outcome = None
        try:
            if state is None:
                state = self.begun(answers, task_id)
            if state is not None:
                previous = state[3]
                text = self.advance(vars(processor)["tokenizer"], state, token_id, releases)
                outcome = text, state[2], previous
                if text:
                    state[3] = previous + text
        except Exception as error:
            go_back(answers, task_id, before)
            outcome = self.stock(processor, token_id, task_id)  # raises what FastDeploy raises
            guard.failed(error)
            return outcome
        if guard.in_a_row:
            guard.worked()
        return self.stock(processor, token_id, task_id) if outcome is None else outcome


def place(state: list[Any] | None) -> tuple[int, int, int] | None:
    """Where an answer is, for `go_back`."""
    return None if state is None else (state[0], state[1], len(state[2]))


def go_back(answers: Any, task_id: Any, before: tuple[int, int, int] | None) -> None:
    """Restore an answer's state before a failure of ours; FastDeploy's method goes on from it."""
    if before is None:
        answers.pop(task_id, None)
        return
    state = answers[task_id]
    state[0], state[1] = before[:2]
    del state[2][before[2] :]


_known: Known[Answers] = Known()  # by `ids2tokens`
keep, answers_of = _known.keep, _known.of
