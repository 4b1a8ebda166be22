"""A step that came as a frame, for the batch loop and `object_step`."""

from __future__ import annotations

import importlib
import sys
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...._core import MASKS, Step, _masks_of
from ...stream_frames import Sections, pooled_in, prompts_in, span_in, tokens_in

_NOTHING = np.empty(0)


class Framed:
    """Step from a frame: a `Step`, and the data that has no place in one.

    The step does not hold all of the slots `apart`.  The worker speaks of `slots` in the step, of which a
    frame that `is_part` has some.

    Raises
    ------
    ValueError
        If the sections do not add up.
    """

    def __init__(self, step: Step, sections: Sections, sender: int, logprobs: bool, lists: Any) -> None:
        self.step, self.sender, self._lists = step, sender, lists
        self._first, n = span_in(sections, step.batch)
        self._end, self.is_part = self._first + n, n != step.batch
        self._prompts, self._pooled = prompts_in(sections, step.batch), pooled_in(sections, step.batch)
        self._tokens, self._has_rows = tokens_in(sections, step.batch), step.channel == "topk"
        self.masks = _masks_of(sections[MASKS], step.batch) if MASKS in sections else {}
        self.slots: Any = range(step.batch) if self._pooled is None else list(self._pooled)
        self.apart = set(self._tokens if self._pooled is None else self._pooled)
        counts = step.counts
        taken = [slot for slot in self.apart if counts[slot] > 0]
        if taken:
            raise ValueError(f"slots {taken} are in the body of the frame, and in a section")
        if self._has_rows and not logprobs:
            ids = np.asarray(step.ids)[:, 0]
            self.step, self._has_rows = Step.from_arrays("plain", counts, ids, as_recorded=True), False

    def entry(self, slot: int) -> Any:
        """The data of a slot as FastDeploy's ``StreamTransferData``; None without any."""
        pooled = None if self._pooled is None else self._pooled.get(slot)
        if not self._first <= slot < self._end or (self._pooled is not None and pooled is None):
            return None
        token, rows = self._tokens.get(slot) or self._in_body(slot)
        prompt = self._prompts.get(slot)
        return SimpleNamespace(
            batch_id=slot,
            tokens=None if self._pooled is not None else np.array([token]),
            logprobs=_FrameRows(rows, self._lists) if self._has_rows else None,
            prompt_logprobs=None if prompt is None else self._tensors(prompt),
            sampling_mask=self.masks.get(slot),
            pooler_output=pooled,
        )

    def _in_body(self, slot: int) -> tuple[int, Any]:
        """The token of a slot, or its code, and its row of log-probabilities."""
        code = self._counts[slot]
        ids, scores, ranks = self._arrays
        if code <= 0:
            return code, None
        row = self.step.offsets[slot]
        here = slice(row, row + 1)
        return int(ids[row, 0]), (ids[here], scores[here], ranks[here]) if self._has_rows else None

    @cached_property
    def _counts(self) -> list[int]:
        return self.step.counts

    @cached_property
    def _arrays(self) -> Any:
        step = self.step
        return np.asarray(step.ids), np.asarray(step.scores), np.asarray(step.ranks)

    def _tensors(self, arrays: Any) -> Any:
        """Make FastDeploy's LogprobsTensors of Paddle's tensors, for a prompt."""
        kind = sys.modules[self._lists.__module__].LogprobsTensors
        paddle: Any = importlib.import_module("paddle")
        return kind(*(paddle.to_tensor(np.array(array), place="cpu") for array in arrays))


class _FrameRows:
    """Log-probabilities of one slot."""

    def __init__(self, rows: Any, lists: Any) -> None:
        self._rows, self._lists = rows or (_NOTHING,) * 3, lists

    def tolists(self) -> Any:
        """Lists as of FastDeploy's LogprobsTensors; none if the worker had fewer slots."""
        return self._lists(*(part.tolist() for part in self._rows))
