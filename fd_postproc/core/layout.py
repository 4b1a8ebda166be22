"""The geometry that a sender and a receiver must agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..support.checks import kind_of, whole_number

Channel: TypeAlias = Literal["plain", "topk", "spec", "spec_topk"]
"""A kind of messages: one token or several of a request, with logprobs or without."""

Dialect: TypeAlias = Literal["packed", "legacy", "compact"]
"""A form of messages: FastDeploy's, its earlier one, or our frames."""

# One message must stay far below what a kernel can carry (INT_MAX) and what a process wants to allocate.
_MAX_CELLS = 1 << 22


@dataclass(frozen=True)
class Layout:
    """Sizes compiled into a FastDeploy build's save and get ops.

    Every offset of every message follows from these four numbers (``wire.h`` computes them), so both
    ends of a queue must use the same ones.

    Parameters
    ----------
    max_batch : int
        Request slots of a ``plain``, ``topk`` or ``spec_topk`` message (upstream: ``MAX_BSZ``).
    top_k : int
        Logprob alternatives; a row holds up to ``top_k + 1`` columns, column 0 being the sampled
        token (upstream: ``K``).
    max_draft : int
        Accepted tokens that one speculative slot can hold (upstream: ``MAX_DRAFT_TOKENS``).
    spec_batch : int
        Request slots of a ``spec`` message (upstream: ``SPECULATE_MAX_BSZ``).

    Raises
    ------
    TypeError
        If one is not a whole number.
    ValueError
        If one is out of range.  ``max_batch`` and ``top_k + 1`` share one 32-bit header word, 16
        bits each, on the ``topk`` channel.
    """

    max_batch: int = 512
    top_k: int = 20
    max_draft: int = 6
    spec_batch: int = 256

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_batch", 1, 65535),
            ("top_k", 0, 32766),
            ("max_draft", 1, 255),
            ("spec_batch", 1, 65535),
        ):
            number = whole_number(getattr(self, name), f"Layout.{name}", low, high)
            object.__setattr__(self, name, number)  # NumPy's integers become Python's
        cells = max(self.max_batch * (self.top_k + 1), self.spec_batch) * self.max_draft
        if cells > _MAX_CELLS:
            raise ValueError(
                f"Layout: {cells} cells in one message, more than {_MAX_CELLS}; "
                "make max_batch, top_k or max_draft smaller"
            )


GPU = Layout()
"""FastDeploy's CUDA build: 512 slots, 20 alternatives, 6 draft tokens; 256 slots on ``spec``."""

XPU = GPU
"""FastDeploy's Kunlun XPU build: ops of its own (``custom_ops/xpu_ops``), with the same numbers."""


def checked_layout(value: Any) -> Layout:
    """The value; TypeError if it is not a `Layout`."""
    if not isinstance(value, Layout):
        raise TypeError(f"layout must be a Layout, not {kind_of(value)}")
    return value
