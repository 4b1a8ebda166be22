"""The feed of FastDeploy's generator of a stream, which keeps log-probabilities from it.

What the generator waits at is a `Feed`, in place of its queue.  Before a result gets there, its
log-probabilities are withheld: pydantic would take ten times as long for them as for all the rest.  The
generator's chunk says ``"logprobs":null``; there the JSON of ours is put in (`Feed.spliced`).

In place of a prompt's log-probabilities the generator gets those of a prompt without candidates, one token
long for the stream's first prompt, two for its second.  So its chunk says which prompt belongs where.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from ..events.counters import note
from ..events.guard import Guard
from .chunks._chunks import FloatStyle, PromptScores, Scores, Unknown
from .scores import Asked, are_arrays
from .text.parsers import Complete
from .waits import Next

RESULT = '"arrival_time":'
"""What the chunk of a result has, and no other one: no chunk with a choice's role, or with its prompt."""
_KEY, _DRAFT_KEY = '"logprobs":', '"draft_logprobs":'
"""No text of a chunk can hold these: there their quotes would be escaped.  Each choice has both once."""
_PROMPT = re.compile(r'(?<="prompt_logprobs":)\[null((?:,\{\})+)\]')


class Choice:
    """One answer of a stream, and what FastDeploy's generator has not seen of it."""

    __slots__ = ("index", "name", "reasoning", "shown", "start", "tokens")

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name
        self.start: Any = None  # of its inference, in FastDeploy's clock; None: no result has come
        self.tokens = self.reasoning = 0  # unseen by FastDeploy's generator
        # Tokens of the prompt, of the answer and of its reasoning, as FastDeploy's generator counts them.
        self.shown: tuple[int, int, int] | None = None

    def joined(self) -> Complete:
        """What FastDeploy's generator has not seen, as one result from which it makes no text."""
        outputs = {
            "index": self.index, "token_ids": [0] * self.tokens, "text": "", "completion_tokens": "",
            "skipped": True, "tool_calls": None, "top_logprobs": None, "draft_top_logprobs": None,
            "reasoning_content": "", "reasoning_token_num": self.reasoning,
        }  # fmt: skip
        if self.shown is not None:
            prompt, tokens, reasoning = self.shown
            self.shown = prompt, tokens + self.tokens, reasoning + self.reasoning
        self.tokens = self.reasoning = 0
        metrics = {"engine_recv_latest_token_time": self.start}
        return Complete(request_id=self.name, finished=False, outputs=outputs, metrics=metrics)


class Feed:
    """What FastDeploy's generator waits at.

    Parameters
    ----------
    name : str
        The id of the stream's request.
    request : ChatCompletionRequest or CompletionRequest
    asked : Asked
        What the request asks for of log-probabilities.
    style : FloatStyle
        How pydantic prints floats.
    guard, scores_guard : Guard
        Of the stream, and of its log-probabilities.

    Attributes
    ----------
    shows_skipped : bool
        Whether a result without text is a chunk all the same.
    choices : dict of str to Choice
        Answers that have not ended and may take the steady lane, by the ids of their results.
    source : object
        What the feed itself waits at, once the generator has registered: a queue, or an `Inbox`.
    group : list or None
        What the generator gets next, before the source's results.
    joined : int
        How many of `group` are joined results.
    drops : int
        How many chunks are still to come that the client does not get: of joined results.
    in_hand : tuple or None
        The result that the generator works on, its choice, and whether it is the choice's first.
    """

    def __init__(
        self,
        name: str,
        request: Any,
        asked: Asked,
        style: FloatStyle,
        guard: Guard,
        scores_guard: Guard,
    ) -> None:
        self.name, self.asked, self.style = name, asked, style
        self._guard, self._scores_guard = guard, scores_guard
        self.choices: dict[str, Choice] = {}
        self.shows_ids, self._shows_drafts = bool(request.return_token_ids), request.include_draft_logprobs
        self.shows_skipped = self.shows_ids
        self.source: Any = None
        self.group: Any = None
        self.joined = self.drops = 0
        self.in_hand: tuple[dict[str, Any], Choice, bool] | None = None
        # Outputs of results whose chunk has not come, with what is put into it.
        self._withheld: list[tuple[dict[str, Any], Scores | None, Scores | None]] = []
        self._prompts: dict[int, PromptScores | str] = {}  # by their number; JSON once they are shown
        self._prompt_count = 0

    def get(self) -> Next:
        """The next group of results, to be awaited."""
        return Next(self)

    async def taken(self) -> Any:
        """Take the next group of results."""
        self.in_hand, group = None, self.group
        if group is None:
            group = await self.source.get()
        self.group, joined, self.joined = None, self.joined, 0
        self.drops = joined if self.shows_ids else 0
        try:
            if type(group) is not list:
                return group
            if self.asked.columns is not None or self.asked.prompt_columns is not None:
                for one in group[joined:]:
                    self._withhold(one)
            if self.choices and type(group[-1]) is dict:
                self._begin(group[-1])
        except Exception as error:
            self.choices.clear()  # nothing of this stream is steady any more
            self._guard.failed(error)
        return group

    def _begin(self, result: dict[str, Any]) -> None:
        choice = self.choices.get(result["request_id"])
        if choice is None or result.get("error_code", 200) != 200:
            return
        is_first, choice.shown = choice.start is None, None
        if is_first:
            choice.start = result["metrics"]["inference_start_time"]
        if result["finished"]:
            del self.choices[choice.name]
        self.in_hand = result, choice, is_first

    # ---- Log-probabilities

    def _withhold(self, result: Any) -> None:
        """Take the log-probabilities out of a result; what ours does not know stays in it."""
        outputs = result.get("outputs") if isinstance(result, dict) else None
        if type(outputs) is not dict:
            return
        made: tuple[Scores | None, Scores | None] = (None, None)  # it shows its own, or none
        try:
            if self.asked.prompt_columns is not None and self._scores_guard.is_on:
                self._withhold_prompt(result)
            has_scores = self.asked.columns is not None and outputs.get("top_logprobs") is not None
            if self._scores_guard.is_on and has_scores:
                made = self.scores(outputs)
                outputs["top_logprobs"] = None  # without these it looks at no draft's
        except Unknown as reason:
            note(str(reason))
        except Exception as error:
            note("the tokenizer refuses a token id")
            self._scores_guard.failed(error)
        if self.asked.columns is not None:
            self._withheld.append((outputs, *made))

    def _withhold_prompt(self, result: dict[str, Any]) -> None:
        """Put a prompt without candidates in place of a result's."""
        tensors, number = result.get("prompt_logprobs"), self._prompt_count + 1
        if are_arrays(tensors):
            self._prompts[number] = self.asked.prompt(tensors)
            numpy = importlib.import_module("numpy")
            none = numpy.empty((number, 0))
            result["prompt_logprobs"], self._prompt_count = [none, none, numpy.ones(number)], number

    def scores(self, outputs: dict[str, Any]) -> tuple[Scores | None, Scores | None]:
        """What a chunk shows of a result's log-probabilities, and of its draft's.  It raises as `Scores`."""
        top, asked = outputs.get("top_logprobs"), self.asked
        if top is None or asked.columns is None:
            return None, None
        draft = outputs.get("draft_top_logprobs") if self._shows_drafts else None
        return asked.scores(top), None if draft is None else asked.scores(draft)

    def spliced(self, chunk: str) -> str:
        """A chunk of the generator's with the log-probabilities that it has not seen.

        What fails here is raised: a chunk without them would say that there are none.
        """
        try:
            if self._prompts:
                chunk = _PROMPT.sub(self._prompt, chunk)
            if RESULT not in chunk:
                return chunk
            if self._prompts:  # what was shown before is not shown again
                self._prompts = {each: one for each, one in self._prompts.items() if type(one) is not str}
            if not self._withheld:
                return chunk
            parts = chunk.split(_KEY)
            for number in range(1, len(parts)):
                parts[number] = self._part(parts[number])
            return _KEY.join(parts)
        except Exception as error:
            self._scores_guard.failed(error)
            raise

    def _prompt(self, found: re.Match[str]) -> str:
        """The JSON of the prompt whose place was found."""
        number = found[1].count("{")
        made = self._prompts[number]
        if not isinstance(made, str):
            made = self._prompts[number] = made.json(self.style)
        return made

    def _part(self, part: str) -> str:
        """What is behind a choice's key in a chunk, with its log-probabilities."""
        outputs, top, draft = self._withheld.pop(0)
        # A result that a parser holds back has no choice, nor has one of tokens that are no text.
        while outputs.get("skipped", True) and not (self.shows_skipped and "skipped" in outputs):
            outputs, top, draft = self._withheld.pop(0)
        if draft is not None:
            first, key, last = part.partition(f"{_DRAFT_KEY}null")
            part = f"{first}{_DRAFT_KEY}{draft.json(self.style)}{last}"
            if not key:
                raise ValueError("a chunk has no place for a draft's log-probabilities")
        if top is not None:
            if not part.startswith("null"):
                raise ValueError("a chunk has no place for log-probabilities")
            part = top.json(self.style) + part[4:]
            if self._scores_guard.in_a_row:
                self._scores_guard.worked()
        return part
