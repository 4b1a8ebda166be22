"""Answers whose new text has a constant cost; the text before it is an excerpt."""

from __future__ import annotations

import weakref
from typing import Any

from .answer_text import AnswerText
from .answers import STATE, Answers, go_back, place
from .excerpt import Excerpt, Marks


class GrowingAnswers:
    """Answers of a data processor whose text grows in place.

    Parameters
    ----------
    answers : Answers
        Of its class.
    stock : function
        Its ``ids2tokens``, which copies the text at each call.
    owner : object
        The data processor.
    marks : Marks or None
        What its parsers look for; None: there is no parser, and the text before is not read.
    """

    def __init__(self, answers: Answers, stock: Any, owner: Any, marks: Marks | None) -> None:
        self.answers, self.stock, self.marks = answers, stock, marks
        self._marked_ids = frozenset() if marks is None else marks.ids
        self._no_ids: list[int] = []
        self._owner = weakref.ref(owner)  # the cache of views must not keep a processor alive

    def ids2tokens(self, token_id: Any, task_id: Any, releases: str = "") -> Any:
        """The new text of an answer, and the excerpt's ids and text before."""
        processor: Any = self._owner()
        states = processor.decode_status
        state = states.get(task_id)
        before = place(state)
        try:
            outcome = self._outcome(processor, states, state, token_id, task_id, releases)
        except Exception as error:
            go_back(states, task_id, before)
            outcome = self.stock(processor, token_id, task_id, releases)  # raises what FastDeploy raises
            self.answers.guard.failed(error)
            return outcome
        return self.stock(processor, token_id, task_id, releases) if outcome is None else outcome

    def _outcome(
        self, processor: Any, states: Any, state: Any, token_id: Any, task_id: Any, releases: str
    ) -> tuple[Any, Any, Any] | None:
        """The outcome of `ids2tokens`; None where the answer's state is FastDeploy's."""
        if not self.answers.guard.is_on:
            return None
        if state is None or type(state[-1]) is not AnswerText or state[3].marks is not self.marks:
            state = self._begun(processor, states, task_id, state)
        if state is None or type(token_id) is not list:
            return None
        answer = state[3]
        delta = self.answers.advance(processor.tokenizer, state, token_id, releases)
        excerpt = answer.excerpt
        if excerpt is None:
            if delta:
                answer.append(delta)
            return delta, self._no_ids, ""
        if not self._marked_ids.isdisjoint(token_id) or not excerpt.ids:
            excerpt.add_ids(token_id)
        previous = excerpt.text
        if delta:
            excerpt.add_text(delta)
            answer.append(delta)  # last: after a failure the answer goes on from its text
        return delta, excerpt.ids, previous

    def _begun(self, processor: Any, states: Any, task_id: Any, state: Any) -> Any:
        """The state of an answer, with a text that can grow; None if it has another type."""
        if state is None:
            state = self.answers.begun(states, task_id)
        if state is None or len(state) != STATE or type(state[3]) not in (str, AnswerText):
            return None
        text, excerpt, way = str(state[3]), None, None
        if self.marks is None:
            way = processor.tokenizer, self.answers.ways_of(processor.tokenizer).new_text
        else:
            excerpt = Excerpt(self.marks)
            excerpt.add_ids(state[2])
            excerpt.add_text(text)
        state[3] = AnswerText(text, self.marks, excerpt, way)
        return state
