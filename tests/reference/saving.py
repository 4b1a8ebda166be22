"""What FastDeploy's save ops make of their tensors, stated one number at a time.

Where FastDeploy's op reads or writes out of bounds, truncates a number or sends an older message's tokens
again, the right thing is stated instead: ValueError, or a count of 0.
"""

from __future__ import annotations

from ctypes import addressof, c_int32, c_int64, sizeof
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fd_postproc.core.layout import GPU, Layout

from .reading import claimed
from .structs import FILLER_ID, FILLER_SCORE, HAS_LOGPROBS, capacity_of, row_at, stride_of, structure

PREEMPTED = -9
_STATE = "not_need_stop seq_lens_decoder prompt_lens"
_ROWS = "sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch"
_TOPK = f"{_ROWS} cu_batch_token_offset {_STATE} preempted_idx message_flag rank_id save_each_rank"

# FastDeploy's ops and their arguments, in order: tensors (NumPy arrays or nested lists), then numbers.
SAVE_OPS = {
    "save_output": "x not_need_stop preempted_idx rank_id save_each_rank",
    "save_output_topk": "x topk_ids logprob_scores ranks not_need_stop preempted_idx rank_id",
    "speculate_save_output": f"accept_tokens accept_num {_STATE} preempted_idx rank_id save_each_rank "
    "skip_prefill",
    "mtp_save_first_token": f"x {_STATE} step_idx rank_id save_each_rank skip_chunk_prefill",
    "speculate_save_output_topk": _TOPK,
    "mtp_save_first_token_with_topk": _TOPK,
}
SAVE_OPS = {op: tuple(names.split()) for op, names in SAVE_OPS.items()}


class Saved(NamedTuple):
    """A message that a save op sends, and which of its bytes the op writes: anything may stand elsewhere."""

    channel: str
    payload: bytes  # it ends where the last byte ends that means something
    written: list[range]


def save(
    op: str, *values: Any, dialect: str = "packed", message_id: int = 1, layout: Layout = GPU
) -> Saved | None:
    """The message of an op, called with its own arguments; None where its rank gate sends nothing."""
    given = SimpleNamespace(**dict(zip(SAVE_OPS[op], values, strict=True)))
    # Only the ops of a prefill node look at `save_each_rank`.
    if given.rank_id > 0 and not (op.startswith("mtp") and given.save_each_rank):
        return None
    channel, make = _MAKERS[op]
    return make(
        given, lambda batch, cols=1: _Message(given, channel, batch, cols, dialect, message_id, layout)
    ).saved()


def _plain(given: Any, begin: Any) -> _Message:
    tokens, preempted = _flat(given.x), _flat(given.preempted_idx)
    message = begin(len(tokens))
    for i, token in enumerate(tokens):
        to = message.row(i, 0)
        message.put(to.ids, to.first, [PREEMPTED if preempted[i] == 1 else _int32(token, f"x[{i}]")])
    return message


def _topk(given: Any, begin: Any) -> _Message:
    """Column 0 is the sampled token."""
    tokens, ids, scores = _flat(given.x), np.asarray(given.topk_ids), np.asarray(given.logprob_scores)
    numbers, preempted = _flat(given.ranks), _flat(given.preempted_idx)
    message = begin(len(tokens), ids.shape[1])
    for i, token in enumerate(tokens):
        row = [token, *ids[i].tolist()[1:]]
        if preempted[i] == 1:  # scores and rank stay what they are
            row = [PREEMPTED] * message.wire_cols
        fitting = [_int32(n, f"topk_ids[{i}]") for n in row]
        message.logprobs(i, 0, fitting, scores[i].tolist(), _int32(numbers[i], f"ranks[{i}]"))
    return message


def _spec(given: Any, begin: Any) -> _Message:
    """A request that is still inside its prompt has no token, if `skip_prefill`."""
    table, preempted = _table(given.accept_tokens, len(given.accept_num)), _flat(given.preempted_idx)
    numbers, chunked = _flat(given.accept_num), _chunked(given)
    message = begin(len(numbers))
    depth = message.layout.max_draft
    counts = [0] * message.layout.spec_batch  # slots that nobody uses are written, too
    cells = [[0] * depth for _ in counts]
    for i, number in enumerate(numbers):
        count = 0 if given.skip_prefill and chunked[i] else number
        counts[i] = PREEMPTED if preempted[i] == 1 else count
        message.check_count(f"accept_num[{i}]", counts[i], min(depth, len(table[i])))
        # Cells beyond the count are noise, and noise is not worth an error.
        cells[i] = [_int32(n, f"accept_tokens[{i}]", j >= counts[i]) for j, n in enumerate(table[i])]
        cells[i] = (cells[i] + [0] * depth)[:depth]
    message.put(message.struct.counts, 0, counts)
    for i, row in enumerate(cells):
        message.put(message.struct.ids[i], 0, row)
    return message


def _first(given: Any, begin: Any) -> _Message:
    """The first token and one draft token of a prefill node, in the step that has just sampled the first."""
    table, step, chunked = _table(given.x, len(given.x)), _flat(given.step_idx), _chunked(given)
    message = begin(len(table))
    for i, tokens in enumerate(table):
        first = step[i] == 1 and not (given.skip_chunk_prefill and chunked[i])
        message.put(message.struct.counts, i, [2 if first else 0])
        if first:
            message.check_count(f"x[{i}]", 2, min(message.layout.max_draft, len(tokens)))
            message.put(message.struct.ids[i], 0, [_int32(n, f"x[{i}]") for n in tokens[:2]])
    return message


def _spec_topk(given: Any, begin: Any, first: bool = False) -> _Message:
    """Request i's rows of logprobs begin at cu_batch_token_offset[i]; inside its prompt it never has a token.

    `first`: the first token has logprobs; one draft token more than token_num_per_batch says has none.
    """
    numbers, chunked = _flat(given.token_num_per_batch), _chunked(given)
    table, offsets = _table(given.sampled_token_ids, len(numbers)), _flat(given.cu_batch_token_offset)
    ids, scores = np.asarray(given.logprob_token_ids), np.asarray(given.logprob_scores)
    ranks, preempted = _flat(given.logprob_ranks), _flat(given.preempted_idx)
    message = begin(len(numbers), ids.shape[1])
    for i, number in enumerate(numbers):
        count = 0 if chunked[i] else number + 1 if first and number > 0 else number
        noise = preempted[i] == 1
        message.put(message.struct.counts, i, [PREEMPTED if noise else count])
        bound, rows = min(message.layout.max_draft, len(table[i])), max(count, 0)
        rows = range(offsets[i], offsets[i] + (min(rows, 1) if first else rows))
        # A preempted request's slot is filled all the same, if that can be done.
        if noise and (count > bound or not _all_there(rows, ids, scores, ranks)):
            continue
        message.check_count(f"token_num_per_batch[{i}]", count, bound)
        for j in range(count):
            token = _int32(table[i][j], f"sampled_token_ids[{i}, {j}]", noise)
            if first and j:
                message.logprobs(i, j, [token] + [0] * (message.wire_cols - 1), [0.0] * message.wire_cols, 0)
                continue
            row = _logprob_row(offsets[i] + j, ids, scores, ranks)
            others = [_int32(n, f"logprob_token_ids[{row}]", noise) for n in ids[row].tolist()[1:]]
            rank = _int32(ranks[row], f"logprob_ranks[{row}]", noise)
            message.logprobs(i, j, [token, *others], scores[row].tolist(), rank)
    return message


_MAKERS = {
    "save_output": ("plain", _plain),
    "save_output_topk": ("topk", _topk),
    "speculate_save_output": ("spec", _spec),
    "mtp_save_first_token": ("spec", _first),
    "speculate_save_output_topk": ("spec_topk", _spec_topk),
    "mtp_save_first_token_with_topk": ("spec_topk", lambda *given: _spec_topk(*given, first=True)),
}


# ---- Between tensors and a message -----------------------------------------------------------------------


class _Message:
    """A message being written, and a list of what was written."""

    def __init__(
        self, given: Any, channel: str, batch: int, cols: int, dialect: str, message_id: int, layout: Layout
    ) -> None:
        self.channel, self.batch, self.cols, self.dialect, self.layout = channel, batch, cols, dialect, layout
        capacity = capacity_of(channel, layout)
        if batch > capacity.slots:
            raise ValueError(f"batch {batch}, at most {capacity.slots}")
        if not 1 <= cols <= capacity.width:
            raise ValueError(f"{cols} columns, at most {capacity.width}")
        self.struct: Any = structure(channel, layout)()
        self.stride = self.wire_cols = stride_of(dialect, cols, capacity)
        self.ranges: list[range] = []
        self.header(given.not_need_stop, message_id, getattr(given, "message_flag", 0))

    def row(self, i: int, j: int) -> Any:
        return row_at(self.struct, self.channel, i, j, self.stride)

    def put(self, array: Any, first: int, values: list[Any]) -> None:
        array[first : first + len(values)] = values
        start = addressof(array) + 4 * first - addressof(self.struct) - sizeof(c_int64)
        self.ranges.append(range(start, start + 4 * len(values)))

    def header(self, not_need_stop: Any, message_id: int, flag: int) -> None:
        stop_word = message_id if _flat(not_need_stop)[0] else -message_id
        packed = self.cols if self.dialect == "packed" and self.channel in HAS_LOGPROBS else 0
        if self.channel == "spec_topk":
            if not 0 <= flag <= 255:
                raise ValueError(f"message_flag {flag} does not fit 8 bits")
            words = [stop_word, flag | packed << 8, self.batch]
        else:
            words = [stop_word, c_int32(self.batch | packed << 16).value]
        self.put(self.struct.words, 0, words)

    def check_count(self, name: str, count: int, bound: int) -> None:
        if count > bound:
            raise ValueError(f"{name} is {count}, at most {bound}")

    def logprobs(self, i: int, j: int, ids: list[int], scores: list[float], rank: int) -> None:
        """Token j of request i; a legacy row is filled up to its full width."""
        to, width = self.row(i, j), self.wire_cols
        self.put(to.ids, to.first, ids + [FILLER_ID] * (width - len(ids)))
        self.put(to.scores, to.first, scores + [FILLER_SCORE] * (width - len(scores)))
        self.put(to.ranks, to.rank, [rank])

    def saved(self) -> Saved:
        payload = bytes(self.struct)[sizeof(c_int64) :]
        end = claimed(payload, self.channel, layout=self.layout)
        written = [range(r.start, min(r.stop, end)) for r in self.ranges if r.start < end]
        return Saved(self.channel, payload[:end], written)


def _flat(tensor: Any) -> list[Any]:
    return np.asarray(tensor).reshape(-1).tolist()


def _table(tensor: Any, batch: int) -> list[list[int]]:
    """Rows of a [batch, width] tensor; [batch] is one column."""
    array = np.asarray(tensor)
    if array.ndim == 1 and len(array) == batch:
        array = array.reshape(batch, 1)
    if array.ndim != 2 or len(array) != batch:
        raise ValueError(f"shape {list(array.shape)}, expected [{batch}, width]")
    return array.tolist()


def _chunked(given: Any) -> list[bool]:
    """Which requests are still inside their prompt."""
    state = _flat(given.seq_lens_decoder), _flat(given.prompt_lens)
    return [decoded < prompt for decoded, prompt in zip(*state, strict=False)]


def _int32(value: int, name: str, wrap: bool = False) -> int:
    if wrap:
        return c_int32(value).value
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{name} is {value}, which does not fit 32 bits")
    return value


def _all_there(rows: range, *tensors: Any) -> bool:
    return all(0 <= row < len(tensor) for row in rows for tensor in tensors)


def _logprob_row(row: int, *tensors: Any) -> int:
    for tensor in tensors:
        if not 0 <= row < len(tensor):
            raise ValueError(f"row {row} of {len(tensor)}")
    return row
