"""The save ops' tensors: their roles and names, and whether their sizes match."""

from __future__ import annotations

from typing import Any

from .._core import DRAFT, TARGET, DeviceInput, HostInput
from ..core.layout import Layout
from ..errors import Refusal, UnfitNumber
from ..support.checks import shown, whole_number
from .table import SAVE_OPS

_PER_REQUEST = ("counts", "offsets", "decoded", "prompts", "preempted", "steps")
Inputs = dict[str, HostInput | DeviceInput]


Given = tuple[str, Inputs, int, int, int, int, Layout, int, bool]
"""Checked arguments of a save op; a tuple, because a class costs 7 % of a short save.

It is the op, its tensors by role, what `check_sizes` returns, the layout, the message's flag, and whether
requests in chunked prefill send nothing.
"""


def check_sizes(op: str, inputs: Inputs) -> tuple[int, int, int, int]:
    """Check the shapes against each other.

    Returns the batch, the columns of the sampled tokens, and the rows and columns of the logprobs.

    As in FastDeploy, ``token_num_per_batch`` decides the batch if there is one, otherwise the sampled tokens.
    Other tensors may be longer, but not the sampled tokens: older engines have them flat, one row per token.
    """
    names = SAVE_OPS[op].roles
    tokens = inputs["tokens"]
    batch = inputs["counts"].size if "offsets" in inputs else (tokens.shape or (0,))[0]
    if len(tokens.shape) == 1 and tokens.size == batch:
        width = 1
    elif len(tokens.shape) == 2 and tokens.shape[0] == batch:
        width = tokens.shape[1]
    elif not 1 <= len(tokens.shape) <= 2:
        raise ValueError(f"{names['tokens']} has shape {list(tokens.shape)}; it must be (batch, columns)")
    else:
        raise ValueError(
            f"{names['tokens']} has shape {list(tokens.shape)}; it must have {batch} rows, one per request"
        )
    for role in _PER_REQUEST:
        if role in inputs and inputs[role].size < batch:
            whose = f"{names['tokens']} has shape {list(tokens.shape)}"
            raise ValueError(
                f"{names[role]} has {inputs[role].size} elements for a batch of {batch} ({whose})"
            )
    if width != 1 and "counts" not in inputs and "steps" not in inputs:
        raise ValueError(
            f"{names['tokens']} has shape {list(tokens.shape)}; it must have 1 column, the sampled token"
        )
    if "ids" not in inputs:
        return batch, width, 0, 1
    ids, scores, ranks = (inputs[role] for role in ("ids", "scores", "ranks"))
    if len(ids.shape) != 2 or ids.shape[1] < 1:
        raise ValueError(f"{names['ids']} has shape {list(ids.shape)}; it must be (rows, columns)")
    if scores.shape != ids.shape:
        both = f"{names['scores']} has shape {list(scores.shape)}, {names['ids']}"
        raise ValueError(f"{both} {list(ids.shape)}; they must be the same")
    return batch, width, min(ids.shape[0], ranks.size), ids.shape[1]


def check_flag(flag: Any) -> int:
    """A message flag as an int; TypeError if it is none, ValueError if no receiver understands it."""
    if type(flag) is not int:
        flag = whole_number(flag, "message_flag", -(1 << 63), (1 << 63) - 1)
    if not 0 <= flag <= 255:
        raise UnfitNumber(
            f"message_flag = {shown(flag)} does not fit the 8 bits that it has on the wire (0..255)"
        )
    if flag not in (0, TARGET, DRAFT):
        raise UnfitNumber(
            f"message_flag = {flag} is not one of 3 (target), 4 (draft), 0 (neither); a receiver would take "
            "the message for one of another channel"
        )
    checked: int = flag
    return checked


def is_first(rank_id: Any) -> bool:
    """Whether a rank sends and receives for all ranks: 0, or below; TypeError if it is no whole number."""
    if type(rank_id) is not int:
        rank_id = whole_number(rank_id, "rank_id", -(1 << 63), (1 << 63) - 1)
    first: bool = rank_id <= 0
    return first


def say(op: str, width: int, cols: int, refusal: Refusal) -> str:
    """The error text for an argument that the C loop or the kernel refused."""
    reason, index, value, bound = refusal
    names = SAVE_OPS[op].roles

    def name(role: str) -> str:
        return names.get(role, role)

    def element(role: str, columns: int) -> str:
        return f"{name(role)}[{index // columns}, {index % columns}]"

    narrow = ("" if value is None else f"= {value} ") + "does not fit the 32 bits that it has on the wire"
    if reason == "too many":
        role = "counts" if "counts" in names else "steps"
        extra = ", the first token included," if op.startswith("mtp") else ""
        text = f"{name(role)}[{index}]: {value} tokens{extra} for one request; at most {bound} fit a slot"
    elif reason == "too narrow":
        text = f"{name('tokens')} has {bound} columns, but request {index} has {value} tokens"
    elif reason == "no row":
        where = "cu_batch_token_offset" if "offsets" in names else name("tokens")
        text = (
            f"{where}[{index}] leads to logprob row {value}, but {name('ids')} and {name('ranks')} "
            f"have {bound} rows"
        )
    elif reason == "token wide":
        text = f"{element('tokens', width)} {narrow}"
    elif reason == "id wide":
        text = f"{element('ids', cols)} {narrow}"
    elif reason == "rank wide":
        text = f"{name('ranks')}[{index}] {narrow}"
    elif reason == "batch":
        text = f"{name('tokens')} has a batch of {value}; at most {bound} requests fit the message"
    else:
        text = f"{name('ids')} has {value} columns; at most {bound} fit the layout"
    return f"{op}: {text}"
