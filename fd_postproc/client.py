"""Answers of FastDeploy's API server as NumPy arrays, for clients that collect rollouts.

A request with ``"compact_arrays": true`` gets its numbers as arrays from a server with the plug-in, and
FastDeploy's default form from any other one.  `read_answer` reads both.  It needs NumPy only.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ASK = {"compact_arrays": True}
"""What a request has beside its other fields, to get arrays."""


@dataclass
class Logprobs:
    """Log-probabilities of an answer's tokens.

    Attributes
    ----------
    token_ids : ndarray of int, shape (tokens, columns), or None
        The sampled token first.  None in the default form, which has texts only.
    logprobs : ndarray of float, shape (tokens, columns)
        NaN where a row has fewer columns.
    """

    token_ids: Array | None
    logprobs: Array


@dataclass
class PromptLogprobs:
    """Log-probabilities of a prompt's tokens from the second one on.

    Attributes
    ----------
    token_ids : ndarray of int, shape (tokens - 1, columns)
        The prompt's own token first; -1 where a row has fewer columns.
    logprobs : ndarray of float, shape (tokens - 1, columns)
        Minus infinity is -9999.0 in the default form, as FastDeploy writes it.
    ranks : ndarray of int, shape (tokens - 1,)
        Of the prompt's own tokens.
    """

    token_ids: Array
    logprobs: Array
    ranks: Array


@dataclass
class Masks:
    """Token ids that sampling kept, for each token: ``masks[i]`` is an array.

    Attributes
    ----------
    offsets : ndarray of int64, shape (tokens + 1,)
    token_ids : ndarray of int32
        Of all tokens, one behind the other.
    """

    offsets: Array
    token_ids: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, token: int) -> Array:
        if not 0 <= token < len(self):
            raise IndexError(f"token={token} is to be from 0 to {len(self) - 1}")
        return self.token_ids[self.offsets[token] : self.offsets[token + 1]]


@dataclass
class Choice:
    """One choice of an answer; None for what the request has not asked for."""

    index: int
    text: str | None
    finish_reason: str | None
    token_ids: Array | None = None
    prompt_token_ids: Array | None = None
    logprobs: Logprobs | None = None
    draft_logprobs: Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    sampling_mask: Masks | None = None


@dataclass
class Answer:
    """An answer that is not streamed.

    Attributes
    ----------
    id : str
    choices : list of Choice
    routed_experts : ndarray or None
        Shape (tokens, layers, experts of a token).  The default form has int64 numbers without a shape: one
        dimension, unless `read_answer` is told.
    usage : dict
    """

    id: str
    choices: list[Choice] = field(default_factory=list)
    routed_experts: Array | None = None
    usage: dict[str, Any] = field(default_factory=dict)


def read_answer(answer: Any, experts_of_a_token: tuple[int, ...] | None = None) -> Answer:
    """Read an answer of chat completions or completions, in either form.

    Parameters
    ----------
    answer : bytes, str or dict
        The body, or what its JSON says.
    experts_of_a_token : tuple of int, optional
        Layers, and experts of each, for the default form, which has no shape.

    Returns
    -------
    Answer

    Raises
    ------
    ValueError
        If it is no such answer, with what is wrong with it.
    """
    told = answer if isinstance(answer, dict) else json.loads(answer)
    if not isinstance(told, dict) or "choices" not in told:
        raise ValueError(f"{str(told)[:200]} is no answer: it has no choices (an error, or a stream?)")
    return Answer(
        id=told.get("id", ""),
        choices=[_choice(one) for one in told["choices"]],
        routed_experts=_experts(told.get("routed_experts"), experts_of_a_token),
        usage=told.get("usage") or {},
    )


def array_of(told: dict[str, Any]) -> Array:
    """The array that an object with ``dtype``, ``shape`` and ``data`` says; read-only.

    Raises
    ------
    ValueError
        If the bytes are not those of the shape, or the type is none of numbers.
    """
    kind = np.dtype(told["dtype"]).newbyteorder("<")
    if kind.kind not in "iuf":
        raise ValueError(f"dtype={told['dtype']!r} is no type of numbers: int, uint or float, and bits")
    numbers = np.frombuffer(base64.b64decode(told["data"]), kind)
    try:
        return numbers.reshape(told["shape"])
    except ValueError:
        raise ValueError(f"shape={told['shape']} does not fit {numbers.size} numbers") from None


def _choice(told: dict[str, Any]) -> Choice:
    said = told.get("message") or told
    ids = said.get("completion_token_ids")
    return Choice(
        index=told["index"],
        text=said.get("content", told.get("text")),
        finish_reason=told.get("finish_reason"),
        token_ids=_ids(told.get("token_ids") if ids is None else ids),
        prompt_token_ids=_ids(said.get("prompt_token_ids")),
        logprobs=_logprobs(told.get("logprobs")),
        draft_logprobs=_logprobs(told.get("draft_logprobs")),
        prompt_logprobs=_prompt(told.get("prompt_logprobs")),
        sampling_mask=_masks(told.get("sampling_mask")),
    )


def _ids(told: Any) -> Array | None:
    if told is None:
        return None
    return array_of(told) if isinstance(told, dict) else np.array(told, np.int64)


def _logprobs(told: Any) -> Logprobs | None:
    if told is None:
        return None
    if "token_ids" in told:
        return Logprobs(array_of(told["token_ids"]), array_of(told["logprobs"]))
    if "content" in told:  # chat
        rows = [
            [one["logprob"], *(other["logprob"] for other in one.get("top_logprobs") or ())]
            for one in told["content"] or ()
        ]
    else:
        maps = told.get("top_logprobs") or [{} for _ in told["token_logprobs"]]
        rows = [
            [score, *[*others.values()][1:]]
            for score, others in zip(told["token_logprobs"], maps, strict=True)
        ]
    return Logprobs(None, _padded(rows, np.nan, np.float64))


def _prompt(told: Any) -> PromptLogprobs | None:
    if told is None:
        return None
    if isinstance(told, dict):
        return PromptLogprobs(*(array_of(told[name]) for name in ("token_ids", "logprobs", "ranks")))
    rows = [row for row in told if row is not None]
    return PromptLogprobs(
        _padded([[int(token) for token in row] for row in rows], -1, np.int64),
        _padded([[one["logprob"] for one in row.values()] for row in rows], np.nan, np.float64),
        np.array([next(iter(row.values()))["rank"] for row in rows], np.int64),
    )


def _masks(told: Any) -> Masks | None:
    if told is None:
        return None
    if isinstance(told, dict):
        return Masks(array_of(told["offsets"]), array_of(told["token_ids"]))
    offsets = np.cumsum([0, *map(len, told)], dtype=np.int64)
    return Masks(offsets, np.array([token for mask in told for token in mask], np.int32))


def _experts(told: Any, of_a_token: tuple[int, ...] | None) -> Array | None:
    if told is None or isinstance(told, dict):
        return None if told is None else array_of(told)
    numbers = np.frombuffer(base64.b64decode(told), "<i8")
    return numbers if of_a_token is None else numbers.reshape(-1, *of_a_token)


def _padded(rows: list[list[Any]], filler: Any, kind: Any) -> Array:
    made = np.full((len(rows), max(map(len, rows), default=0)), filler, kind)
    for i, row in enumerate(rows):
        made[i, : len(row)] = row
    return made
