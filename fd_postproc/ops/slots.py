"""Maps the rows of the worker's tensors to slots of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.layout import Layout
from ..core.tensors import host_array


class Slots:
    """Map of a step's tensor rows to slots.

    Prefill-decode reordering moves requests within the worker's tensors; the engine knows them by slot.  What
    the map says about rows beyond those of this step does not matter.
    """

    def __init__(self, order: Any, rows: int, layout: Layout) -> None:
        self.source: Any = None  # row of each slot, -1 where there is none; None: nothing was moved
        moved: Mapping[int, int] = order.index_to_batch_id if order.enable_pd_reorder else {}
        if not moved or all(row == slot for row, slot in moved.items()):
            return
        row_of: dict[int, int] = {}
        for row, slot in moved.items():
            if not 0 <= row < rows:
                continue
            if not 0 <= slot < layout.max_batch:
                raise ValueError(
                    f"index_to_batch_id[{row}] = {slot} is not a slot: they are 0 to {layout.max_batch - 1}"
                )
            if slot in row_of:
                raise ValueError(f"index_to_batch_id sends rows {row_of[slot]} and {row} both to slot {slot}")
            row_of[slot] = row
        size = max(rows, max(row_of, default=-1) + 1)
        self.source = np.array([row_of.get(slot, -1) for slot in range(size)], np.intp)

    def place(self, tensor: Any, name: str, empty: int = 0) -> Any:
        """A copy of `tensor` by slot, with `empty` for slots without a row."""
        if self.source is None:
            return tensor
        array = host_array(tensor, name)
        last = self.source.max(initial=-1)
        if last >= len(array):
            raise ValueError(f"{name} has {len(array)} rows, but row {last} of the step belongs to a request")
        if not len(array):
            return array
        placed = array[self.source]
        placed[self.source < 0] = empty
        return placed

    def named(self, tensors: Any, name: str) -> Any:
        """`place` of the tensor with that name."""
        return self.place(tensors[name], name)


def order_of(proposer: Any, model_output: Any) -> Any:
    """The object that has the order of the proposer's tensors."""
    return proposer if hasattr(proposer, "index_to_batch_id") else model_output


def rows_of(tensor: Any) -> int:
    return int(tensor.shape[0]) if len(tensor.shape) else 0


def first_rows(tensor: Any, rows: int) -> Any:
    """The rows of this step, without the unused rows of a larger buffer."""
    return tensor[:rows] if rows_of(tensor) > rows else tensor
