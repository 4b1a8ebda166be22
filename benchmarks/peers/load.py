"""The load that every engine is given: streams, tokens a step, log-probabilities, and the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SEED = 20260


def likeliest(columns: int) -> np.ndarray:
    """The ranks of a row's columns: the sampled token is the likeliest, and so in two of them."""
    return np.maximum(np.arange(columns) - 1, 0)


DIFFERENT = 8
"""Messages, which a pass takes in turn."""


class Message(NamedTuple):
    """The numbers of a step: a row for each token, the streams' tokens one after the other.

    Attributes
    ----------
    ids : numpy.ndarray
        Column 0 is the sampled token; the others are the likeliest.
    scores : numpy.ndarray
        float32.
    ranks : numpy.ndarray
        Of the sampled tokens.
    """

    ids: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray


class Answer(NamedTuple):
    """What one request got in a step.

    Attributes
    ----------
    ids : list of int or None
        Its new tokens; None where the engine's result has texts only.
    text : str or None
        Its new text; None where no texts are asked for.
    logprobs : list of list of (int, float) or None
        For each token, the sampled one's id and log-probability, then the likeliest ones'.
    """

    ids: list[int] | None
    text: str | None
    logprobs: list[list[tuple[int, float]]] | None


@dataclass(frozen=True)
class Load:
    """What is played.

    Parameters
    ----------
    streams : int
        Requests that stream at the same time.
    accepted : int
        Tokens of each request in a step.
    top : int or None
        Likeliest tokens whose log-probabilities are wanted beside the sampled token's; None: none at all.
    texts : bool
        Whether results hold texts beside numbers.
    """

    streams: int = 256
    accepted: int = 2
    top: int | None = None
    texts: bool = True

    def __str__(self) -> str:
        columns = "no logprobs" if self.top is None else f"{self.top} logprobs"
        return f"{self.streams} x {self.accepted}, {columns}, {'texts' if self.texts else 'ids'}"

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.streams * self.accepted

    def messages(self, usable: Sequence[int]) -> list[Message]:
        """The messages of a pass, always the same; `usable`: ids to draw from."""
        columns = 1 + (self.top or 0)
        rng = np.random.default_rng([SEED, self.streams, self.accepted, columns])
        pool, made = np.asarray(usable), []
        for _ in range(DIFFERENT):
            start = rng.integers(0, len(pool), (self.tokens, 1))
            stride = rng.integers(1, len(pool) // max(columns, 2), (self.tokens, 1))
            ids = pool[(start + stride * likeliest(columns)) % len(pool)]
            scores = -np.sort(rng.exponential(4.0, (self.tokens, columns)), axis=1)[:, likeliest(columns)]
            ranks = np.ones(self.tokens, np.int64)
            made.append(Message(ids.astype(np.int64), scores.astype(np.float32), ranks))
        return made

    def right(self, message: Message, stream: int) -> Answer:
        """What a request has to get of a message, but for its text."""
        rows = range(stream * self.accepted, (stream + 1) * self.accepted)
        logprobs = None
        if self.top is not None:
            logprobs = [
                list(zip(message.ids[row].tolist(), message.scores[row].tolist(), strict=True))
                for row in rows
            ]
        return Answer(message.ids[rows, 0].tolist(), None, logprobs)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Model:
    """A folder that engines take for a model, and what its tokenizer says.

    Attributes
    ----------
    folder : Path
    usable : list of int
        Ids of tokens that are whole characters.
    """

    def __init__(self, folder: Path) -> None:
        from harness.service import model

        self.folder = folder
        self._first, self._last = model.make(folder)

    @cached_property
    def tokenizer(self) -> Any:
        """Of the tokenizers library."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @cached_property
    def usable(self) -> list[int]:
        ids = range(self._first, self._last)
        return [one for one in ids if "\ufffd" not in self.text([one])]

    def text(self, ids: list[int]) -> str:
        """The text of an answer."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


class WrongAnswer(Exception):
    """An engine's result is not what was sent; it is not timed."""


def check(load: Load, model: Model, sent: list[Message], got: list[list[Answer]]) -> None:
    """Compare the answers of some steps with what was sent.

    Parameters
    ----------
    sent : list of Message
        The first steps of young requests.
    got : list of list of Answer
        For each step, the requests' answers in order.

    Raises
    ------
    WrongAnswer
        If a text is not the text of the tokens, or a log-probability is another one.
    """
    for stream in range(load.streams):
        right = [load.right(message, stream) for message in sent]
        answers = [step[stream] for step in got]
        for answer, expected in zip(answers, right, strict=True):
            if answer.ids is not None and answer.ids != expected.ids:
                raise WrongAnswer(f"{load}: tokens {answer.ids}, sent {expected.ids}")
            if _in_order(answer.logprobs) != _in_order(expected.logprobs):
                raise WrongAnswer(f"{load}: logprobs {answer.logprobs}, sent {expected.logprobs}")
        if load.texts:
            text = "".join(answer.text or "" for answer in answers)
            expected_text = model.text([one for answer in right for one in answer.ids or []])
            if text != expected_text:
                raise WrongAnswer(f"{load}: text {text!r} is not that of the tokens, {expected_text!r}")


def _in_order(logprobs: list[list[tuple[int, float]]] | None) -> Any:
    """The sampled token's first, then all by id: engines order them differently, or name it once."""
    return logprobs and [[row[0], *sorted({*row})] for row in logprobs]
