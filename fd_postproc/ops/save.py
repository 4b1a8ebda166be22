"""The save ops: from tensors to one message in a queue."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from .._core import HostInput, Sender, environment_variable, host_flag, host_input
from ..errors import QueueRemoved
from ..layout import GPU, Layout
from .environment import message_id, queue_mode, send_dialect
from .pool import Pool

log = logging.getLogger("fd_postproc")


def save_output(
    x: Any,
    not_need_stop: Any,
    preempted_idx: Any,
    rank_id: int,
    save_each_rank: bool,
    *,
    layout: Layout = GPU,
) -> Any:
    """Send one token per request on ``plain``.

    Parameters
    ----------
    x : tensor, int64, shape (batch, 1)
        Sampled tokens, or negative codes.
    not_need_stop : tensor, bool, 1 element
        Whether the worker has something left to do: the sign of the first header word.
    preempted_idx : tensor, int32, batch elements or more
        1 where the request was preempted: -9 is sent for it.
    rank_id : int
        Above 0 nothing is sent.
    save_each_rank : bool
        Not looked at, as in FastDeploy.
    layout : Layout, optional
        Geometry of the receiver's build.

    Returns
    -------
    tensor
        `x`.

    Raises
    ------
    TypeError, ValueError
        If a tensor or a number in it does not fit; nothing was sent.
    QueueError
        If the message could not be sent.
    """
    if rank_id <= 0:
        given = {"tokens": ("x", x), "preempted": ("preempted_idx", preempted_idx)}
        _save("save_output", "plain", given, not_need_stop, layout)
    return x


def save_output_topk(
    x: Any,
    topk_ids: Any,
    logprob_scores: Any,
    ranks: Any,
    not_need_stop: Any,
    preempted_idx: Any,
    rank_id: int,
    *,
    layout: Layout = GPU,
) -> Any:
    """Send one token per request with its logprobs on ``topk``.

    Parameters
    ----------
    x : tensor, int64, shape (batch, 1)
        Sampled tokens, or negative codes.
    topk_ids : tensor, int64, shape (batch, cols)
        Alternatives; column 0 is replaced by `x`.
    logprob_scores : tensor, float32, shape (batch, cols)
    ranks : tensor, int64, batch elements
    not_need_stop, preempted_idx, rank_id, layout
        As for `save_output`.

    Returns
    -------
    tensor
        `x`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    if rank_id <= 0:
        given = {
            "tokens": ("x", x),
            "ids": ("topk_ids", topk_ids),
            "scores": ("logprob_scores", logprob_scores),
            "ranks": ("ranks", ranks),
            "preempted": ("preempted_idx", preempted_idx),
        }
        _save("save_output_topk", "topk", given, not_need_stop, layout)
    return x


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
    layout: Layout = GPU,
) -> None:
    """Send the accepted tokens of each request on ``spec``.

    Parameters
    ----------
    accept_tokens : tensor, int64, shape (batch, width)
    accept_num : tensor, int32, batch elements
        Accepted tokens of each request, or a negative code.
    seq_lens_decoder : tensor, int32, batch elements
    prompt_lens : tensor, int64, batch elements
        A request is in chunked prefill while the former is below the latter.
    skip_prefill : bool
        Send 0 tokens for requests in chunked prefill.
    rank_id : int
        Above 0 nothing is sent, whatever `save_each_rank`.
    not_need_stop, preempted_idx, layout
        As for `save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    if rank_id <= 0:
        given = {
            "tokens": ("accept_tokens", accept_tokens),
            "counts": ("accept_num", accept_num),
            "decoded": ("seq_lens_decoder", seq_lens_decoder),
            "prompts": ("prompt_lens", prompt_lens),
            "preempted": ("preempted_idx", preempted_idx),
        }
        _save("speculate_save_output", "spec", given, not_need_stop, layout, skip_prefill=bool(skip_prefill))


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
    layout: Layout = GPU,
) -> None:
    """Send the accepted tokens of each request with their logprobs on ``spec_topk``.

    Parameters
    ----------
    sampled_token_ids : tensor, int64, shape (batch, width)
    logprob_token_ids : tensor, int64, shape (total, cols)
        One row per token; column 0 is replaced by the sampled token.
    logprob_scores : tensor, float32, shape (total, cols)
    logprob_ranks : tensor, int64, total elements
    token_num_per_batch : tensor, int32, batch elements
        Tokens of each request, or a negative code.
    cu_batch_token_offset : tensor, int32, batch elements or more
        First logprob row of each request.
    seq_lens_decoder, prompt_lens
        A request in chunked prefill (the former below the latter) sends nothing.
    message_flag : int
        3 target, 4 draft (0..255).
    rank_id : int
        Above 0 nothing is sent, whatever `save_each_rank`.
    not_need_stop, preempted_idx, layout
        As for `save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    if rank_id <= 0:
        given = _with_logprobs(
            sampled_token_ids, logprob_token_ids, logprob_scores, logprob_ranks, token_num_per_batch,
            cu_batch_token_offset, seq_lens_decoder, prompt_lens, preempted_idx,
        )  # fmt: skip
        _save("speculate_save_output_topk", "spec_topk", given, not_need_stop, layout, flag=message_flag)


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
    layout: Layout = GPU,
) -> None:
    """Send the first token of each request of a prefill node, and a draft token, on ``spec``.

    Parameters
    ----------
    x : tensor, int64, shape (batch, 2 or more)
    step_idx : tensor, int64, batch elements
        Two tokens are sent for a request at step 1, none at any other.
    rank_id : int
        Above 0 something is sent only if `save_each_rank`.
    skip_chunk_prefill : bool
        Send 0 tokens for requests in chunked prefill.
    not_need_stop, seq_lens_decoder, prompt_lens, layout
        As for `speculate_save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    if save_each_rank or rank_id <= 0:
        given = {
            "tokens": ("x", x),
            "decoded": ("seq_lens_decoder", seq_lens_decoder),
            "prompts": ("prompt_lens", prompt_lens),
            "steps": ("step_idx", step_idx),
        }
        skip = bool(skip_chunk_prefill)
        _save("mtp_save_first_token", "spec", given, not_need_stop, layout, skip_prefill=skip)


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
    layout: Layout = GPU,
) -> None:
    """Send the first token of each request of a prefill node with its logprobs, and its draft tokens.

    One token more than ``token_num_per_batch`` says is sent for each request that has any: the first with
    logprobs, the draft tokens without (their columns, scores and ranks are 0).  Parameters as for
    `speculate_save_output_topk`, but `save_each_rank` lets ranks above 0 send, too.
    """
    if save_each_rank or rank_id <= 0:
        given = _with_logprobs(
            sampled_token_ids, logprob_token_ids, logprob_scores, logprob_ranks, token_num_per_batch,
            cu_batch_token_offset, seq_lens_decoder, prompt_lens, preempted_idx,
        )  # fmt: skip
        _save("mtp_save_first_token_with_topk", "spec_topk", given, not_need_stop, layout, flag=message_flag)


def flush(timeout: float | None = None) -> bool:
    """Wait until everything that was saved is in its queue.

    Returns
    -------
    bool
        True: host tensors are sent before their op returns.
    """
    return True


def save_stats() -> dict[str, int | float]:
    """Counters of all save ops of this process, summed; see `fd_postproc.Sender.stats`."""
    return _senders.stats()


# ---- From named tensors to the C loop -----------------------------------------------------------------

_DTYPES = {
    "tokens": "int64",
    "ids": "int64",
    "scores": "float32",
    "ranks": "int64",
    "counts": "int32",
    "offsets": "int32",
    "decoded": "int32",
    "prompts": "int64",
    "preempted": "int32",
    "steps": "int64",
}
_PER_REQUEST = ("counts", "offsets", "decoded", "prompts", "preempted", "steps")


def _with_logprobs(
    tokens: Any,
    ids: Any,
    scores: Any,
    ranks: Any,
    counts: Any,
    offsets: Any,
    decoded: Any,
    prompts: Any,
    preempted: Any,
) -> dict[str, tuple[str, Any]]:
    return {
        "tokens": ("sampled_token_ids", tokens),
        "ids": ("logprob_token_ids", ids),
        "scores": ("logprob_scores", scores),
        "ranks": ("logprob_ranks", ranks),
        "counts": ("token_num_per_batch", counts),
        "offsets": ("cu_batch_token_offset", offsets),
        "decoded": ("seq_lens_decoder", decoded),
        "prompts": ("prompt_lens", prompts),
        "preempted": ("preempted_idx", preempted),
    }


def _save(
    op: str,
    channel: str,
    given: dict[str, tuple[str, Any]],
    not_need_stop: Any,
    layout: Layout,
    *,
    flag: int = 0,
    skip_prefill: bool = False,
) -> None:
    """Send what the save op `op` was given: {role: (argument's name, tensor)}."""
    inputs = {role: host_input(tensor, name, _DTYPES[role]) for role, (name, tensor) in given.items()}
    batch, width, rows, cols = _sizes(given, inputs)
    if not 0 <= flag <= 255:
        raise ValueError(f"message_flag = {flag} does not fit the 8 bits that it has on the wire (0..255)")
    ident = message_id()
    stop_flag = ident if host_flag(not_need_stop, "not_need_stop") else -ident
    stock_batch = layout.spec_batch if channel == "spec" else layout.max_batch
    dialect = send_dialect("ids" in inputs, batch > stock_batch)
    _watch()
    which = (channel, environment_variable("INFERENCE_MSG_QUEUE_ID"), dialect, layout)
    sender = _senders.take(which, lambda: Sender(channel, dialect=dialect, layout=layout, mode=queue_mode()))
    gone = False
    try:
        fault = sender._save(
            op,
            inputs,
            batch,
            cols,
            width,
            rows,
            stop_flag=stop_flag,
            flag=flag,
            skip_prefill=skip_prefill,
        )
    except QueueRemoved:
        gone = True  # the next call makes a new queue
        raise
    finally:
        if gone:
            _senders.drop(sender)
        else:
            _senders.give_back(which, sender)
    if fault is not None:
        raise ValueError(_say(op, given, width, cols, *fault))


def _sizes(given: dict[str, tuple[str, Any]], inputs: dict[str, HostInput]) -> tuple[int, int, int, int]:
    """Check the shapes against each other.

    Returns the batch, the columns of the sampled tokens, and the rows and columns of the logprobs.

    As in FastDeploy, ``token_num_per_batch`` decides the batch where there is one, else the sampled tokens.
    Other tensors may be longer, but not the sampled tokens: older engines have them flat, one row a token.
    """
    tokens = inputs["tokens"]
    batch = inputs["counts"].size if "offsets" in inputs else (tokens.shape or (0,))[0]
    if len(tokens.shape) == 1 and tokens.size == batch:
        width = 1
    elif len(tokens.shape) == 2 and tokens.shape[0] == batch:
        width = tokens.shape[1]
    else:
        raise ValueError(
            f"{given['tokens'][0]} has shape {list(tokens.shape)}; it must have {batch} rows, one per request"
        )
    for role in _PER_REQUEST:
        if role in inputs and inputs[role].size < batch:
            name = given[role][0]
            whose = f"{given['tokens'][0]} has shape {list(tokens.shape)}"
            raise ValueError(f"{name} has {inputs[role].size} elements for a batch of {batch} ({whose})")
    if width != 1 and "counts" not in inputs and "steps" not in inputs:
        raise ValueError(
            f"{given['tokens'][0]} has shape {list(tokens.shape)}; it must have 1 column, the sampled token"
        )
    if "ids" not in inputs:
        return batch, width, 0, 1
    ids, scores, ranks = (inputs[role] for role in ("ids", "scores", "ranks"))
    if len(ids.shape) != 2 or ids.shape[1] < 1:
        raise ValueError(f"{given['ids'][0]} has shape {list(ids.shape)}; it must be (rows, columns)")
    if scores.shape != ids.shape:
        names = f"{given['scores'][0]} has shape {list(scores.shape)}, {given['ids'][0]}"
        raise ValueError(f"{names} {list(ids.shape)}; they must be the same")
    return batch, width, min(ids.shape[0], ranks.size), ids.shape[1]


def _say(
    op: str,
    given: dict[str, tuple[str, Any]],
    width: int,
    cols: int,
    reason: str,
    index: int,
    value: int,
    bound: int,
) -> str:
    """Words for what the C loop refused; the reasons are those of enum fdp_reason in _request.h."""

    def name(role: str) -> str:
        return given[role][0] if role in given else role

    def element(role: str, columns: int) -> str:
        return f"{name(role)}[{index // columns}, {index % columns}]"

    narrow = "does not fit the 32 bits that it has on the wire"
    if reason == "too many":
        role = "counts" if "counts" in given else "steps"
        extra = ", the first token included," if op.startswith("mtp") else ""
        text = f"{name(role)}[{index}]: {value} tokens{extra} for one request; at most {bound} fit a slot"
    elif reason == "too narrow":
        text = f"{name('tokens')} has {bound} columns, but request {index} has {value} tokens"
    elif reason == "no row":
        where = "cu_batch_token_offset" if "offsets" in given else name("tokens")
        text = (
            f"{where}[{index}] leads to logprob row {value}, but {name('ids')} and {name('ranks')} "
            f"have {bound} rows"
        )
    elif reason == "token wide":
        text = f"{element('tokens', width)} = {value} {narrow}"
    elif reason == "id wide":
        text = f"{element('ids', cols)} = {value} {narrow}"
    elif reason == "rank wide":
        text = f"{name('ranks')}[{index}] = {value} {narrow}"
    elif reason == "batch":
        text = f"{name('tokens')} has a batch of {value}; at most {bound} requests fit the message"
    else:
        text = f"{name('ids')} has {value} columns; at most {bound} fit the layout"
    return f"{op}: {text}"


_senders: Pool[Sender] = Pool()
_WATCH_SECONDS = 10.0
_watched_pid = 0


def _watch() -> None:
    """Have a thread that says so when a call waits for room.  After a fork there is none: start one anew."""
    global _watched_pid
    if _watched_pid != os.getpid():
        _watched_pid = os.getpid()
        threading.Thread(target=_tell_who_waits, name="fd_postproc-watch", daemon=True).start()


def _tell_who_waits() -> None:
    while True:
        time.sleep(_WATCH_SECONDS)
        for sender in list(_senders.members):
            waited = sender.waiting_seconds
            if waited >= _WATCH_SECONDS:
                log.warning(
                    "queue %d (%s, key %#x) has been full for %.0f s: is the engine alive? Nothing is lost; "
                    "the save op goes on waiting",
                    sender.msqid,
                    sender.channel,
                    sender.key,
                    waited,
                )
