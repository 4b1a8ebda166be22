"""Whole answers: values of many items go around FastDeploy's models into the response.

FastDeploy's generator of an answer that is not streamed waits at an `Answer` in place of its queue.  That
withholds log-probabilities, sampling masks and routed experts: FastDeploy's models have None there, and our
response class (`responses`) writes their JSON.  It gets an answer by the task of FastDeploy's route: any
other caller of a handler gets FastDeploy's own answer.

No client sees an answer before it ends.  So FastDeploy's generator is woken for `AT_ONCE` groups of results,
or for a result that ends a choice, not for each.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..events.counters import note
from ..events.guard import Guard
from ..events.log import api_log
from ..gate import called, replacements
from ..gate.seams import SEAMS, NotPlain
from .chunks._chunks import (
    PYTHON,
    PromptScores,
    Scores,
    Texts,
    Unknown,
    json_of,
)
from .connections import Inbox, registering
from .judged import Judged, leave
from .responses import answering
from .scores import SEAM, Asked, AskedOfChat, AskedOfCompletion, are_arrays, why_not

AT_ONCE = 16
"""Groups of results for which FastDeploy's generator is woken."""

_ENCODED = 3 << 16  # bytes of experts that become one piece of base64
_MASKS = 64  # of tokens in a piece


class Choice:
    """What is withheld of one choice; `is_open`, `takes_prompt`: whether further values are."""

    def __init__(self) -> None:
        self.is_open = self.takes_prompt = True
        self.scores: dict[str, Scores] = {}  # by key in the answer
        self.tops: list[Any] = []  # as they came, each with its draft's
        self.prompt: PromptScores | None = None
        self.masks: list[str] = []

    def parts(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        """The JSON of what is withheld, in pieces, by key in the answer."""
        for key, scores in self.scores.items():
            if scores.rows:
                yield key, scores.pieces()
        if self.prompt is not None:
            yield "prompt_logprobs", self.prompt.pieces()
        if self.masks:
            yield "sampling_mask", self._masks()

    def _masks(self) -> Iterator[bytes]:
        for begin in range(0, len(self.masks), _MASKS):
            yield (b"," if begin else b"[") + ",".join(self.masks[begin : begin + _MASKS]).encode()
        yield b"]"


class Answer(Inbox):
    """What FastDeploy's generator waits at, and what is withheld from it.

    Parameters
    ----------
    handler : object
        FastDeploy's.
    request : ChatCompletionRequest or CompletionRequest
    name : str
        The id of the request.
    choices : list of str
        The ids of the choices' results.
    shown : set of str
        The keys of a choice in this FastDeploy's answer, and of the answer.
    guard : Guard
    """

    ASKED: type[Asked]
    STOPS = False
    """Whether FastDeploy's generator drops what comes behind the end of a choice in a group."""

    def __init__(
        self, handler: Any, request: Any, name: str, choices: list[str], shown: set[str], guard: Guard
    ) -> None:
        super().__init__()
        self.name, self._shown, self._guard = name, shown, guard
        self._values = {each: Choice() for each in choices}
        self.choices: Any = True  # FastDeploy's map may have it
        self.source: Any = None  # a queue to wait at, where FastDeploy's own gets the results
        self._last = choices[-1] if choices else ""  # a client may ask for none
        self._is_due = False
        self._experts: Any = None
        self._asked, self._drafts = self.ASKED(handler, request), bool(request.include_draft_logprobs)

    @staticmethod
    def sample(protocol: Any) -> Any:
        """FastDeploy's model of a row of log-probabilities, which `_shown_by` compares with ours."""
        raise NotImplementedError

    # ---- What FastDeploy's dispatcher and generator call

    def put_nowait(self, group: Any) -> None:
        self.results.append(group)
        if len(self.results) >= AT_ONCE or _ends(group):
            self._is_due = True
            self._wake()

    async def get(self) -> Any:
        """Return the next results: groups up to one that ends a choice, or an error in their place."""
        if self.source is not None:
            self.results.append(await self.source.get())
            self._is_due = True
        while not self._is_due:
            try:
                await self.wait()
            except (
                asyncio.CancelledError
            ):  # FastDeploy's time is over: at its next call it gets what there is
                self._is_due = bool(self.results)
                raise
        results: list[Any] = []
        while self.results and not (results and type(self.results[0]) is not list):
            group = self.results.popleft()
            if type(group) is not list:
                results = group
                break
            results += group
            if _ends(group):
                break
        self._is_due = bool(self.results)
        if type(results) is list:
            self._withhold_all(results)
        return results

    # ---- Values that are withheld

    def _withhold_all(self, results: list[Any]) -> None:
        for result in results:
            if type(result) is not dict or type(outputs := result.get("outputs")) is not dict:
                continue
            choice = self._values.get(result.get("request_id", ""))
            # FastDeploy drops tokens of another kind than text, and takes experts only out of an error.
            if choice is not None and not outputs.get("decode_type"):
                try:
                    self._withhold_experts(result)
                    if choice.is_open and result.get("error_code", 200) == 200:
                        self._withhold(choice, result, outputs)
                except Exception as error:
                    note(str(error) if isinstance(error, Unknown) else "the tokenizer refuses a token id")
                    if not isinstance(error, Unknown):
                        self._guard.failed(error)
                    choice.is_open = False
                    self._give_back(choice, outputs)
            if self.STOPS and result.get("finished"):
                break

    def _withhold_experts(self, result: dict[str, Any]) -> None:
        """Withhold those of every choice, closed or not: the last ones are shown."""
        experts = result.get("routing_data")
        if experts is None or not result.get("finished") or "routed_experts" not in self._shown:
            return
        if not self.STOPS or result["request_id"] == self._last:
            numbers = importlib.import_module("numpy").asarray(experts)  # as FastDeploy has it
            if numbers.dtype.kind == "i" and numbers.size and numbers.flags.c_contiguous:
                self._experts, result["routing_data"] = numbers, None

    def _withhold(self, choice: Choice, result: dict[str, Any], outputs: dict[str, Any]) -> None:
        tensors = result.get("prompt_logprobs")
        if tensors is not None and self._asked.prompt_columns is not None and choice.takes_prompt:
            choice.takes_prompt = self.STOPS and are_arrays(tensors)  # chat shows all of several
            if are_arrays(tensors):
                choice.prompt = self._asked.prompt(tensors)
                result["prompt_logprobs"] = None
        mask = outputs.get("sampling_mask")
        if mask is not None and "sampling_mask" in self._shown:
            choice.masks += [json_of(row, PYTHON) for row in _rows_of(mask)]
            outputs["sampling_mask"] = None
        if outputs.get("top_logprobs") is not None and self._asked.columns is not None:
            self._withhold_scores(choice, outputs)

    def _withhold_scores(self, choice: Choice, outputs: dict[str, Any]) -> None:
        top, draft = outputs["top_logprobs"], outputs.get("draft_top_logprobs") if self._drafts else None
        if not choice.scores:
            names = ("logprobs", "draft_logprobs") if self._drafts else ("logprobs",)
            choice.scores = {each: self._asked.none() for each in names}
        if draft is not None:  # both are withheld or none is
            self._asked.none().add(draft)
        choice.scores["logprobs"].add(top)
        if draft is not None:
            choice.scores["draft_logprobs"].add(draft)
        outputs["top_logprobs"] = outputs["draft_top_logprobs"] = None
        if self.STOPS:
            choice.tops.append((top, draft))

    def _give_back(self, choice: Choice, outputs: dict[str, Any]) -> None:
        """Give FastDeploy's generator the rows that it puts together itself, before those of a result."""
        for place, key in enumerate(("top_logprobs", "draft_top_logprobs")):
            rows = [one[place] for one in choice.tops if one[place] is not None]
            if rows:
                rows += [outputs[key]] if outputs.get(key) is not None else []
                outputs[key] = [[row for one in rows for row in one[which]] for which in range(3)]
        if choice.tops:
            choice.tops, choice.scores = [], {}

    # ---- What the response asks for

    def marked(self, content: dict[str, Any], mark: str) -> list[Iterable[bytes]]:
        """Put marks into FastDeploy's answer where something was withheld; return the JSON of each."""
        parts: list[Iterable[bytes]] = []

        def put(holder: dict[str, Any], key: str, pieces: Iterable[bytes]) -> None:
            if holder[key] is None:
                holder[key] = f"{mark}{len(parts)}"
                parts.append(pieces)
                return
            if self.STOPS:  # FastDeploy's came later
                return
            ours, theirs = json.loads(b"".join(pieces)), holder[key]
            if type(ours) is dict:
                ours, theirs = ours["content"], theirs["content"]
            theirs[:0] = ours  # FastDeploy's go on where ours end

        if content.get("id") == self.name:  # it is no error
            choices = [*self._values.values()]
            for shown in content["choices"]:
                for key, pieces in choices[shown["index"]].parts():
                    put(shown, key, pieces)
            if self._experts is not None and content["routed_experts"] is None:
                put(content, "routed_experts", _base64(self._experts))
            self._guard.worked()
        return parts


class ChatAnswer(Answer):
    """The answer of a chat completion."""

    ASKED = AskedOfChat

    @staticmethod
    def sample(protocol: Any) -> Any:
        entry = protocol.LogProbEntry
        others = [entry(token="é", logprob=-1.5, bytes=[195, 169])]
        return protocol.LogProbs(content=[entry(token="a", logprob=-0.5, bytes=[97], top_logprobs=others)])


class CompletionAnswer(Answer):
    """The answer of a completion."""

    ASKED, STOPS = AskedOfCompletion, True

    @staticmethod
    def sample(protocol: Any) -> Any:
        return protocol.CompletionLogprobs(
            tokens=["a"], token_logprobs=[-0.5], top_logprobs=[{"a": -0.5, "é": -1.5}]
        )


def _ends(group: Any) -> bool:
    """Whether FastDeploy's generator is to get a group at once: the end of a choice, or an error."""
    return type(group) is not list or any(
        type(one) is not dict or one.get("finished") or one.get("error_code", 200) != 200 for one in group
    )


def _rows_of(mask: Any) -> list[Any]:
    """A sampling mask's lists, one a token; Unknown for anything else."""
    rows = mask if type(mask) is list and mask and type(mask[0]) is list else [mask]
    if any(type(row) is not list for row in rows):
        raise Unknown("a sampling mask is no list")
    return rows


def _base64(array: Any) -> Iterator[bytes]:
    numbers = memoryview(array).cast("B")
    for begin in range(0, len(numbers), _ENCODED):
        yield (b"" if begin else b'"') + base64.b64encode(numbers[begin : begin + _ENCODED])
    yield b'"'


# ---- Which answers -----------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[str, str, type[Answer], str]] = {
    "serving_chat": (
        "OpenAIServingChat", "chat_completion_full_generator", ChatAnswer, "ChatCompletionResponse",
    ),
    "serving_completion": (
        "OpenAIServingCompletion", "completion_full_generator", CompletionAnswer, "CompletionResponse",
    ),
}  # fmt: skip
"""By module: FastDeploy's class and its method, what it waits at, and the class of its answers."""


def install(module: Any) -> Callable[[], None]:
    """Install ours in ``serving_chat`` or ``serving_completion``; return a function that restores."""
    return replacements.install("api answers", replacement(module))


def replacement(module: Any) -> tuple[Any, str, Any]:
    """FastDeploy's class in a serving module, the name of its method, and ours."""
    owner, name, kind, answer = ANSWERS[module.__name__.rpartition(".")[2]]
    cls = vars(module)[owner]
    stock, shown = vars(cls)[name], _shown_by(answer, kind)
    guard, names = Guard(SEAM, api_log), tuple(inspect.signature(stock).parameters)
    make_id = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", "{}_{}".format)
    judged = Judged(module, lambda one, names: why_not(module, names))
    functions = (*(one.rpartition(".")[2].rpartition(":")[2] for one in SEAMS[SEAM].functions),)

    def answer_of(given: dict[str, Any]) -> Answer | None:
        handler, request, of = given["self"], given["request"], given["request_id"]
        if getattr(handler, "enable_mm_output", False):
            return None
        if (outer := vars(cls)[name]) is not full:
            raise NotPlain(f"{owner}.{name} is wrapped by {called.place_of(outer)[0]}")
        judged.check(handler, functions)
        choices = [make_id(of, i) for i in range(given.get("num_choices", request.n or 1))]
        return kind(handler, request, of, choices, shown, guard)

    @functools.wraps(stock)
    async def full(*arguments: Any, **options: Any) -> Any:
        place, waits = answering.get(), None
        try:
            if place is not None and guard.is_on:
                waits = answer_of({**dict(zip(names, arguments, strict=False)), **options})
        except NotPlain as reason:
            leave(SEAM, reason)
        except Exception as error:
            guard.failed(error)
        if place is None or waits is None:
            return await stock(*arguments, **options)
        registering.set(waits)
        try:
            made = await stock(*arguments, **options)
        finally:
            registering.set(None)
        if made is not None:  # FastDeploy's has logged why
            place.answer = waits
        return made

    return cls, name, full


def _shown_by(name: str, kind: type[Answer]) -> set[str]:
    """The fields of an answer's class and of its choices'; NotPlain if it shows values in another way."""
    protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
    logprob = importlib.import_module("fastdeploy.worker.output").Logprob
    numpy = importlib.import_module("numpy")
    answer = vars(protocol)[name]
    (choice,) = typing.get_args(answer.model_fields["choices"].annotation)
    top, texts = [[[0, 1]], [[-0.5, -1.5]], [1]], Texts(lambda token: ("aé"[token], "aé"[token]))
    scores = kind.ASKED.KIND(1, texts)
    scores.add(top)
    prompt = PromptScores.of([numpy.array(one) for one in ([[7]], [[-0.5]], [3])], 0, None)
    made = choice.model_construct(
        logprobs=kind.sample(protocol), prompt_logprobs=[None, {7: logprob(-0.5, 3, None)}]
    )
    for key, ours in (("logprobs", scores), ("prompt_logprobs", prompt)):
        theirs = json.dumps(made.model_dump(include={key})[key], ensure_ascii=False, separators=(",", ":"))
        if b"".join(ours.pieces()).decode() != theirs:
            raise NotPlain(f"{choice.__name__} shows {key} in another way")
    return {*answer.model_fields, *choice.model_fields}
