"""A step that came as a frame, as the batch loop and `streamed` look at it."""

from __future__ import annotations

import importlib
import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..._core import Step, _step_of_tokens, decode
from ...layout import GPU, Channel, Layout
from ..stream_frames import Frame, masks_of, pooled_of, prompts_of, rows_of, tokens_of

_CHANNELS: dict[int, Channel] = {2: "spec", 3: "spec_topk"}
_COMPACT = struct.Struct("<17xB6xii")  # of a compact frame: channel, batch and columns


class Framed:
    """What `_results.Entries` is for a step that came as objects.

    Parameters
    ----------
    frame : Frame
    logprobs : bool
        Whether log-probabilities are for the clients.
    lists : type
        FastDeploy's LogprobsLists.

    Attributes
    ----------
    step : Step
    apart : set of int
    masks : dict of int to list of int
        Sampling masks by slot.
    slots : collection of int
        Those that the worker speaks of in the step, of which the frame may have some.
    is_part : bool
        Whether it has not all.
    sender : int

    Raises
    ------
    ValueError
        If the frame does not add up.
    """

    def __init__(self, frame: Frame, logprobs: bool, lists: Any) -> None:
        self._frame, self._lists = frame, lists
        first, whole = self._span = frame.span
        self.is_part, self.sender = (first, whole) != (0, frame.slots), frame.sender
        self._prompts, self._pooled = prompts_of(frame), pooled_of(frame)
        self._tokens, self._rows = tokens_of(frame), rows_of(frame)
        self.masks = {first + slot: mask for slot, mask in masks_of(frame).items()}
        tokens = frame.sections.get(b"tokens")
        if tokens is None:
            self.slots: Any = [first + slot for slot in self._pooled]
            self.apart = set(self.slots)
            codes = np.full(first + frame.slots, -1, np.int32)
            self.step = Step.from_arrays("plain", codes, np.empty((0, 1), np.int32), None, None)
            return
        self.slots = range(whole)
        rows = frame.sections.get(b"logprobs") if logprobs else None
        # What is not in the step, and no code, is looked at closely.
        apart = [first + slot for slot in self._prompts] if logprobs else ()
        self.step, self.apart = _step_of_tokens(tokens, rows, apart, first)

    def entry(self, slot: int) -> Any:
        """What has come for a slot, with the attributes of FastDeploy's ``StreamTransferData``; or None."""
        here = slot - self._span[0]
        tokens, prompt = self._tokens, self._prompts.get(here)
        if not 0 <= here < self._frame.slots or (tokens is None and here not in self._pooled):
            return None
        return SimpleNamespace(
            batch_id=slot,
            tokens=None if tokens is None else tokens[here : here + 1],
            logprobs=None if self._rows is None else _Rows(self._rows, here, self._lists),
            prompt_logprobs=None if prompt is None else self._tensors(prompt),
            sampling_mask=self.masks.get(slot),
            pooler_output=self._pooled.get(here),
        )

    def _tensors(self, arrays: Any) -> Any:
        """FastDeploy's LogprobsTensors of Paddle's tensors, which results hold for a prompt."""
        kind = sys.modules[self._lists.__module__].LogprobsTensors
        paddle: Any = importlib.import_module("paddle")
        return kind(*(paddle.to_tensor(np.array(array), place="cpu") for array in arrays))


def accepted_step(frame: Frame, layout: Layout = GPU) -> Step:
    """The step of a frame that carries speculative decoding's accepted tokens.

    Parameters
    ----------
    frame : Frame
    layout : Layout
        The build's; no limit of a queue is one here, but the number of tokens that a slot holds is.

    Raises
    ------
    MalformedMessage, ValueError
        If the frame has none, or it does not add up.
    """
    content = frame.sections.get(b"compact")
    if content is None or len(content) < _COMPACT.size:
        raise ValueError("a frame without accepted tokens, while the engine decodes speculatively")
    number, batch, columns = _COMPACT.unpack_from(content)
    if number not in _CHANNELS or batch != frame.slots:
        raise ValueError(f"accepted tokens of channel {number} and {batch} slots in a frame of {frame.slots}")
    wide = Layout(max(layout.max_batch, batch), max(layout.top_k, columns - 1), layout.max_draft)
    return decode(content, _CHANNELS[number], mtype=2, layout=wide)


class _Rows:
    """Log-probabilities of one slot."""

    def __init__(self, rows: Any, slot: int, lists: Any) -> None:
        self._rows, self._slot, self._lists = rows, slot, lists

    def tolists(self) -> Any:
        """As FastDeploy's LogprobsTensors gives them: of no row, if the worker had fewer than slots."""
        one = slice(self._slot, self._slot + 1)
        return self._lists(*(part[one].tolist() for part in self._rows))
