"""A step that came as a frame, as the batch loop and `streamed` look at it."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..._core import Step
from ..stream_frames import Content, opened

_INT32 = np.iinfo(np.int32)


class Framed:
    """What `_results.Entries` is for a step that came as objects.

    Parameters
    ----------
    content : bytes
    logprobs : bool
        Whether log-probabilities are for the clients.
    lists : type
        FastDeploy's LogprobsLists.

    Attributes
    ----------
    step : Step
    apart : set of int
    masks : dict of int to list of int
    slots : collection of int
        Those that the worker speaks of.

    Raises
    ------
    ValueError
        If the frame does not add up.
    """

    def __init__(self, content: bytes, logprobs: bool, lists: Any) -> None:
        self._told = told = opened(content)
        self._logprobs, self._lists = logprobs, lists
        self.masks: dict[int, list[int]] = {}
        self.apart: set[int] = set()
        if told.tokens is None:
            self.slots: Any = list(told.pooled)
            self.apart = set(told.pooled)
            self.step = Step.from_arrays(
                "plain", np.full(told.slots, -1, np.int32), np.empty((0, 1), np.int32), None, None
            )
            return
        self.slots = range(told.slots)
        self.step = self._as_step(told, told.tokens, told.rows if logprobs else None)
        if told.masks is not None:
            steady = np.flatnonzero(np.asarray(self.step.counts) > 0).tolist()
            self.masks = {slot: told.masks[slot].tolist() for slot in steady}

    def _as_step(self, told: Content, tokens: Any, rows: Any) -> Step:
        in_step = tokens >= 0
        if self._logprobs:
            in_step[list(told.prompts)] = False
        in_step &= tokens <= _INT32.max
        if rows is not None:
            ids = rows[0]
            in_step[len(ids) :] = False
            in_step[: len(ids)] &= ids[:, 0] == tokens[: len(ids)]
        # What is not in the step, and no code, is looked at closely.
        self.apart = set(np.flatnonzero(~in_step & (tokens >= 0)).tolist())
        codes = np.where(tokens < 0, np.maximum(tokens, _INT32.min), -1)
        counts = np.where(in_step, 1, codes).astype(np.int32)
        if rows is None:
            return Step.from_arrays(
                "plain", counts, tokens[in_step].astype(np.int32).reshape(-1, 1), None, None
            )
        live = in_step[: len(rows[0])]
        if not live.all():
            rows = [part[live] for part in rows]
        return Step.from_arrays("topk", counts, *rows)

    def entry(self, slot: int) -> Any:
        """What has come for a slot, with the attributes of FastDeploy's ``StreamTransferData``; or None."""
        told = self._told
        if not 0 <= slot < told.slots or (told.tokens is None and slot not in told.pooled):
            return None
        prompt = told.prompts.get(slot)
        return SimpleNamespace(
            batch_id=slot,
            tokens=None if told.tokens is None else told.tokens[slot : slot + 1],
            logprobs=None if told.rows is None else _Rows(told.rows, slot, self._lists),
            prompt_logprobs=None if prompt is None else self._tensors(prompt),
            sampling_mask=None if told.masks is None else told.masks[slot],
            pooler_output=told.pooled.get(slot),
        )

    def _tensors(self, arrays: Any) -> Any:
        """FastDeploy's LogprobsTensors of Paddle's tensors, which results hold for a prompt."""
        kind = sys.modules[self._lists.__module__].LogprobsTensors
        paddle: Any = importlib.import_module("paddle")
        return kind(*(paddle.to_tensor(np.array(array), place="cpu") for array in arrays))


class _Rows:
    """Log-probabilities of one slot."""

    def __init__(self, rows: Any, slot: int, lists: Any) -> None:
        self._rows, self._slot, self._lists = rows, slot, lists

    def tolists(self) -> Any:
        """As FastDeploy's LogprobsTensors gives them: of no row, if the worker had fewer than slots."""
        one = slice(self._slot, self._slot + 1)
        return self._lists(*(part[one].tolist() for part in self._rows))
