"""What FastDeploy's save ops make of their tensors, stated one number at a time.

Each function takes the op's own arguments in the op's own order (NumPy arrays or nested lists) and returns
the message, or None where the op's rank gate sends nothing.  Where FastDeploy's op reads or writes out of
bounds, truncates a number or sends an older message's tokens again, the right thing is stated instead:
ValueError, or a count of 0.
"""

from __future__ import annotations

from ctypes import addressof, c_int32, c_int64, sizeof
from typing import Any, NamedTuple

import numpy as np

from fd_postproc.layout import GPU, Layout

from .kinds import checked
from .reading import claimed
from .structs import FILLER_ID, FILLER_SCORE, HAS_LOGPROBS, capacity_of, row_at, stride_of, structure

PREEMPTED = -9


class Saved(NamedTuple):
    """A message that a save op sends.

    Attributes
    ----------
    channel : str
    payload : bytes
        It ends where the last byte ends that means something.
    written : list of range
        Bytes of it that the op writes.  Elsewhere anything may stand.
    """

    channel: str
    payload: bytes
    written: list[range]


@checked
def save_output(
    x: Any,
    not_need_stop: Any,
    preempted_idx: Any,
    rank_id: int,
    save_each_rank: bool,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's save_output.

    Parameters
    ----------
    x : int64, [batch, 1]
        Sampled tokens.
    not_need_stop : bool, [1]
    preempted_idx : int32, [batch, 1]
        1: the request was preempted.
    rank_id : int
    save_each_rank : bool
        Not looked at.
    dialect : {"packed", "legacy"}, optional
        Form of the logprob channels.
    message_id : int, optional
        INFERENCE_MSG_ID.
    layout : Layout, optional
    """
    if rank_id > 0:
        return None
    tokens, preempted = _flat(x), _flat(preempted_idx)
    message = _Message("plain", len(tokens), 1, dialect, layout)
    message.header(not_need_stop, message_id)
    for i, token in enumerate(tokens):
        to = message.row(i, 0)
        message.put(to.ids, to.first, [PREEMPTED if preempted[i] == 1 else _int32(token, f"x[{i}]")])
    return message.saved()


@checked
def save_output_topk(
    x: Any,
    topk_ids: Any,
    logprob_scores: Any,
    ranks: Any,
    not_need_stop: Any,
    preempted_idx: Any,
    rank_id: int,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's save_output_topk.

    Parameters
    ----------
    x : int64, [batch, 1]
        Sampled tokens: column 0 of the message.
    topk_ids : int64, [batch, cols]
        The other columns.
    logprob_scores : float32, [batch, cols]
    ranks : int64, [batch]
    not_need_stop, preempted_idx, rank_id
        As in `save_output`.
    """
    if rank_id > 0:
        return None
    tokens, ids, scores = _flat(x), np.asarray(topk_ids), np.asarray(logprob_scores)
    numbers, preempted = _flat(ranks), _flat(preempted_idx)
    message = _Message("topk", len(tokens), ids.shape[1], dialect, layout)
    message.header(not_need_stop, message_id)
    for i, token in enumerate(tokens):
        row = [token, *ids[i].tolist()[1:]]
        if preempted[i] == 1:  # scores and rank stay what they are
            row = [PREEMPTED] * message.wire_cols
        checked = [_int32(n, f"topk_ids[{i}]") for n in row]
        message.logprobs(i, 0, checked, scores[i].tolist(), _int32(numbers[i], f"ranks[{i}]"))
    return message.saved()


@checked
def speculate_save_output(
    accept_tokens: Any,
    accept_num: Any,
    not_need_stop: Any,
    seq_lens_decoder: Any,
    prompt_lens: Any,
    preempted_idx: Any,
    rank_id: int,
    save_each_rank: bool,
    skip_prefill: bool,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's speculate_save_output.

    Parameters
    ----------
    accept_tokens : int64, [batch, width]
    accept_num : int32, [batch]
        Accepted tokens, or a negative code.
    seq_lens_decoder : int32, [batch, 1]
    prompt_lens : int64, [batch, 1]
    skip_prefill : bool
        A request that is still inside its prompt has no token.
    not_need_stop, preempted_idx, rank_id, save_each_rank
        As in `save_output`.
    """
    if rank_id > 0:
        return None
    table, preempted = _table(accept_tokens, len(accept_num)), _flat(preempted_idx)
    numbers, chunked = _flat(accept_num), _chunked(seq_lens_decoder, prompt_lens)
    message = _Message("spec", len(numbers), 1, dialect, layout)
    message.header(not_need_stop, message_id)
    counts = [0] * layout.spec_batch  # slots that nobody uses are written, too
    cells = [[0] * layout.max_draft for _ in counts]
    for i, number in enumerate(numbers):
        count = 0 if skip_prefill and chunked[i] else number
        counts[i] = PREEMPTED if preempted[i] == 1 else count
        message.check_count(f"accept_num[{i}]", counts[i], min(layout.max_draft, len(table[i])))
        # Cells beyond the count are noise, and noise is not worth an error.
        cells[i] = [_int32(n, f"accept_tokens[{i}]", j >= counts[i]) for j, n in enumerate(table[i])]
        cells[i] = (cells[i] + [0] * layout.max_draft)[: layout.max_draft]
    message.put(message.struct.counts, 0, counts)
    for i, row in enumerate(cells):
        message.put(message.struct.ids[i], 0, row)
    return message.saved()


@checked
def mtp_save_first_token(
    x: Any,
    not_need_stop: Any,
    seq_lens_decoder: Any,
    prompt_lens: Any,
    step_idx: Any,
    rank_id: int,
    save_each_rank: bool,
    skip_chunk_prefill: bool,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's mtp_save_first_token: the first token and one draft token of a prefill node.

    Parameters
    ----------
    x : int64, [batch, 2 or more]
    step_idx : int64, [batch, 1]
        1: the first token has just been sampled.  In any other step there is none to send.
    not_need_stop, seq_lens_decoder, prompt_lens, rank_id, skip_chunk_prefill
        As in `speculate_save_output`.
    save_each_rank : bool
        Ranks above 0 send, too.
    """
    if not save_each_rank and rank_id > 0:
        return None
    table, step, chunked = _table(x, len(x)), _flat(step_idx), _chunked(seq_lens_decoder, prompt_lens)
    message = _Message("spec", len(table), 1, dialect, layout)
    message.header(not_need_stop, message_id)
    for i, tokens in enumerate(table):
        first = step[i] == 1 and not (skip_chunk_prefill and chunked[i])
        message.put(message.struct.counts, i, [2 if first else 0])
        if first:
            message.check_count(f"x[{i}]", 2, min(layout.max_draft, len(tokens)))
            message.put(message.struct.ids[i], 0, [_int32(n, f"x[{i}]") for n in tokens[:2]])
    return message.saved()


@checked
def speculate_save_output_topk(
    sampled_token_ids: Any,
    logprob_token_ids: Any,
    logprob_scores: Any,
    logprob_ranks: Any,
    token_num_per_batch: Any,
    cu_batch_token_offset: Any,
    not_need_stop: Any,
    seq_lens_decoder: Any,
    prompt_lens: Any,
    preempted_idx: Any,
    message_flag: int,
    rank_id: int,
    save_each_rank: bool,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's speculate_save_output_topk.

    Parameters
    ----------
    sampled_token_ids : int64, [batch, width]
        Column 0 of request i's token j is [i, j].
    logprob_token_ids : int64, [total, cols]
        The other columns; request i's rows begin at cu_batch_token_offset[i].
    logprob_scores : float32, [total, cols]
    logprob_ranks : int64, [total]
    token_num_per_batch : int32, [batch]
    cu_batch_token_offset : int32, [batch or more]
    message_flag : int
        3 target, 4 draft.
    not_need_stop, seq_lens_decoder, prompt_lens, preempted_idx, rank_id
        As in `speculate_save_output`; but a request inside its prompt never has a token.
    save_each_rank : bool
        Not looked at.
    """
    if rank_id > 0:
        return None
    numbers = _flat(token_num_per_batch)
    table = _table(sampled_token_ids, len(numbers))
    ids, scores, ranks = np.asarray(logprob_token_ids), np.asarray(logprob_scores), _flat(logprob_ranks)
    offsets, preempted = _flat(cu_batch_token_offset), _flat(preempted_idx)
    chunked = _chunked(seq_lens_decoder, prompt_lens)
    message = _Message("spec_topk", len(numbers), ids.shape[1], dialect, layout)
    message.header(not_need_stop, message_id, message_flag)
    for i, number in enumerate(numbers):
        count, noise = 0 if chunked[i] else number, preempted[i] == 1
        message.put(message.struct.counts, i, [PREEMPTED if noise else count])
        bound, rows = min(layout.max_draft, len(table[i])), range(offsets[i], offsets[i] + max(count, 0))
        # A preempted request's slot is filled all the same, if that can be done.
        if noise and (count > bound or not _all_there(rows, ids, scores, ranks)):
            continue
        message.check_count(f"token_num_per_batch[{i}]", count, bound)
        for j in range(count):
            row = _logprob_row(offsets[i] + j, ids, scores, ranks)
            tokens = [_int32(n, f"row {row}", noise) for n in [table[i][j], *ids[row].tolist()[1:]]]
            rank = _int32(ranks[row], f"logprob_ranks[{row}]", noise)
            message.logprobs(i, j, tokens, scores[row].tolist(), rank)
    return message.saved()


@checked
def mtp_save_first_token_with_topk(
    sampled_token_ids: Any,
    logprob_token_ids: Any,
    logprob_scores: Any,
    logprob_ranks: Any,
    token_num_per_batch: Any,
    cu_batch_token_offset: Any,
    not_need_stop: Any,
    seq_lens_decoder: Any,
    prompt_lens: Any,
    preempted_idx: Any,
    message_flag: int,
    rank_id: int,
    save_each_rank: bool,
    *,
    dialect: str = "packed",
    message_id: int = 1,
    layout: Layout = GPU,
) -> Saved | None:
    """FastDeploy's mtp_save_first_token_with_topk: the first token with logprobs, then draft tokens without.

    Parameters
    ----------
    sampled_token_ids : int64, [batch, width]
        The first token, and the draft tokens after it: one more than token_num_per_batch says.
    save_each_rank : bool
        Ranks above 0 send, too.
    others
        As in `speculate_save_output_topk`.
    """
    if not save_each_rank and rank_id > 0:
        return None
    numbers = _flat(token_num_per_batch)
    table = _table(sampled_token_ids, len(numbers))
    ids, scores, ranks = np.asarray(logprob_token_ids), np.asarray(logprob_scores), _flat(logprob_ranks)
    offsets, preempted = _flat(cu_batch_token_offset), _flat(preempted_idx)
    chunked = _chunked(seq_lens_decoder, prompt_lens)
    message = _Message("spec_topk", len(numbers), ids.shape[1], dialect, layout)
    message.header(not_need_stop, message_id, message_flag)
    for i, number in enumerate(numbers):
        count = 0 if chunked[i] else number + 1 if number > 0 else number
        noise = preempted[i] == 1
        message.put(message.struct.counts, i, [PREEMPTED if noise else count])
        bound, rows = min(layout.max_draft, len(table[i])), range(offsets[i], offsets[i] + (count > 0))
        if noise and (count > bound or not _all_there(rows, ids, scores, ranks)):
            continue
        message.check_count(f"token_num_per_batch[{i}] + 1", count, bound)
        for j in range(count):
            token = _int32(table[i][j], f"sampled_token_ids[{i}, {j}]", noise)
            if j == 0:
                row = _logprob_row(offsets[i], ids, scores, ranks)
                others = [_int32(n, f"logprob_token_ids[{row}]", noise) for n in ids[row].tolist()[1:]]
                rank = _int32(ranks[row], f"logprob_ranks[{row}]", noise)
                message.logprobs(i, 0, [token, *others], scores[row].tolist(), rank)
            else:
                message.logprobs(i, j, [token] + [0] * (message.wire_cols - 1), [0.0] * message.wire_cols, 0)
    return message.saved()


# ---- Between tensors and a message -----------------------------------------------------------------------


class _Message:
    """A message being written, and a list of what was written."""

    def __init__(self, channel: str, batch: int, cols: int, dialect: str, layout: Layout) -> None:
        self.channel, self.batch, self.cols, self.dialect, self.layout = channel, batch, cols, dialect, layout
        capacity = capacity_of(channel, layout)
        if batch > capacity.slots:
            raise ValueError(f"batch {batch}, at most {capacity.slots}")
        if not 1 <= cols <= capacity.width:
            raise ValueError(f"{cols} columns, at most {capacity.width}")
        self.struct: Any = structure(channel, layout)()
        self.stride = self.wire_cols = stride_of(dialect, cols, capacity)
        self.ranges: list[range] = []

    def row(self, i: int, j: int) -> Any:
        return row_at(self.struct, self.channel, i, j, self.stride)

    def put(self, array: Any, first: int, values: list[Any]) -> None:
        array[first : first + len(values)] = values
        start = addressof(array) + 4 * first - addressof(self.struct) - sizeof(c_int64)
        self.ranges.append(range(start, start + 4 * len(values)))

    def header(self, not_need_stop: Any, message_id: int, flag: int = 0) -> None:
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


def _chunked(seq_lens_decoder: Any, prompt_lens: Any) -> list[bool]:
    """Which requests are still inside their prompt."""
    return [a < b for a, b in zip(_flat(seq_lens_decoder), _flat(prompt_lens), strict=False)]


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
