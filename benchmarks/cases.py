"""Inputs, and the few types that questions and runner share.  Everything random has a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np

from fd_postproc._core import CHANNELS, Step, encode, payload_size, tensor_elements
from fd_postproc.core.layout import GPU, Layout

SEED = 20260
VOCABULARY = 151_936
ROOMY = (64 << 20, 64 << 20)  # kernel.msgmax and kernel.msgmnb; more than any message here

Channel: TypeAlias = Literal["plain", "topk", "spec", "spec_topk"]
Dialect: TypeAlias = Literal["packed", "legacy", "compact"]


@dataclass(frozen=True)
class Case:
    """One kind of decode step.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    batch : int
        Requests.
    accepted : int
        Tokens of each request; 1 on ``plain`` and ``topk``.
    columns : int
        Logprob columns; 1 on channels without logprobs.
    """

    channel: Channel = "spec_topk"
    batch: int = 256
    accepted: int = 2
    columns: int = 21

    def __str__(self) -> str:
        parts = [self.channel, f"b{self.batch}"]
        if self.channel.startswith("spec"):
            parts.append(f"a{self.accepted}")
        if self.channel.endswith("topk"):
            parts.append(f"c{self.columns}")
        return " ".join(parts)

    def step(self) -> Step:
        """The step, always the same for the same case."""
        rng = np.random.default_rng(
            [SEED, CHANNELS.index(self.channel), self.batch, self.accepted, self.columns]
        )
        rows = self.batch * self.accepted
        ids = rng.integers(0, VOCABULARY, (rows, self.columns))
        counts = [self.accepted] * self.batch
        if not self.channel.endswith("topk"):
            return Step.from_arrays(self.channel, counts, ids)
        scores = -np.sort(rng.exponential(4.0, (rows, self.columns)), axis=1)
        ranks = rng.geometric(0.6, rows)  # a sampled token is nearly always among the likeliest
        return Step.from_arrays(self.channel, counts, ids, scores, ranks)

    def message(self, *, full: bool = True, dialect: Dialect = "packed", layout: Layout = GPU) -> bytes:
        """The step on the wire: as long as FastDeploy sends it, or ending after the last live slot."""
        payload = encode(self.step(), dialect, layout=layout)
        return payload.ljust(payload_size(self.channel, layout), b"\0") if full else payload

    def inputs(self) -> dict[str, np.ndarray]:
        """What a save op is given to send the step, by role: no request is preempted or in chunked prefill.

        Token tensors are as wide as a slot; ids and ranks are int64, as the sampler makes them.
        """
        step = self.step()
        speculative = self.channel.startswith("spec")
        tokens = np.zeros((self.batch, GPU.max_draft if speculative else 1), np.int64)
        ids = np.asarray(step.ids, np.int64).reshape(-1, self.columns)
        tokens[:, : self.accepted] = ids[:, 0].reshape(self.batch, self.accepted)
        inputs = {
            "tokens": tokens,
            "not_need_stop": np.array([True]),
            "preempted": np.zeros((self.batch, 1), np.int32),
        }
        if self.channel.endswith("topk"):
            inputs["ids"] = ids
            inputs["scores"] = np.array(step.scores, np.float32).reshape(-1, self.columns)
            inputs["ranks"] = np.asarray(step.ranks, np.int64)
        if speculative:
            inputs["counts"] = np.array(step.counts, np.int32)
            inputs["offsets"] = np.array(step.offsets, np.int32)
            inputs["prompts"] = np.full((self.batch, 1), 100, np.int64)
            inputs["decoded"] = np.full((self.batch, 1), 200, np.int32)
        return inputs


def tensors_of(channel: Channel) -> tuple[np.ndarray, ...]:
    """What a get op of the channel is given: flat arrays, filled as FastDeploy's engine fills them."""
    sizes = tensor_elements(channel, GPU)
    filled = ((np.int64, 2), (np.float32, 0), (np.int64, 0))
    return tuple(
        np.full(size, value, dtype) for size, (dtype, value) in zip(sizes, filled, strict=False) if size
    )


NARROW, WIDE = Case(columns=1), Case(columns=21)
TOPK = Case("topk", accepted=1)
SPEC, PLAIN = Case("spec", columns=1), Case("plain", accepted=1, columns=1)


# ---- What questions hand to the runner --------------------------------------------------------------


class WrongAnswer(Exception):
    """A contender's result is not what it must be; it is not timed."""


class Unavailable(Exception):
    """A contender cannot run here; the text says what is missing."""


def check(right: bool, what: str) -> None:
    """Refuse to time a wrong answer."""
    if not right:
        raise WrongAnswer(what)


TimeFunction = Callable[[int], float]


@dataclass
class Ready:
    """A contender whose answer has been checked.

    Parameters
    ----------
    run : callable
        Loop count -> seconds.
    bytes : int, optional
        Length of the message that is read.
    close : callable, optional
        Undoes what outlives the process.
    """

    run: TimeFunction
    bytes: int = 0
    close: Callable[[], Any] = field(default=lambda: None)


@dataclass(frozen=True)
class Comparison:
    """Contenders doing the same work, timed in turn.

    Parameters
    ----------
    case : str
        Label, unique within a question.
    contenders : mapping of str to callable
        Each builds its input, checks its answer and returns a `Ready`.
    """

    case: str
    contenders: Mapping[str, Callable[[], Ready]]


def timed(call: Callable[[], Any]) -> TimeFunction:
    """The bare loop around one call."""

    def run(loops: int) -> float:
        f = call
        began = perf_counter()
        for _ in repeat(None, loops):
            f()
        return perf_counter() - began

    return run
