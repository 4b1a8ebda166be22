"""The save ops: from tensors to one message in a queue."""

from __future__ import annotations

from typing import Any

from .._core import DeviceInput, host_flag, on_device, tensor_input
from ..core.layout import GPU, Layout, checked_layout
from ..core.tensors import ROLES, on_host
from . import host
from .arguments import Given, check_flag, check_sizes, is_first
from .device import saves
from .proof import Comparison
from .table import SAVE_OPS


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
        If above 0, nothing is sent.
    save_each_rank : bool
        Ignored, as in FastDeploy.
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
    _save("save_output", layout, x, not_need_stop, preempted_idx, rank_id, save_each_rank)
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
    _save(
        "save_output_topk", layout, x, topk_ids, logprob_scores, ranks, not_need_stop, preempted_idx,
        rank_id,
    )  # fmt: skip
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
        If above 0, nothing is sent, whatever `save_each_rank` is.
    not_need_stop, preempted_idx, layout
        As for `save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    _save(
        "speculate_save_output", layout, accept_tokens, accept_num, not_need_stop, seq_lens_decoder,
        prompt_lens, preempted_idx, rank_id, save_each_rank, skip_prefill,
    )  # fmt: skip


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
        3 target, 4 draft, or 0.
    rank_id : int
        If above 0, nothing is sent, whatever `save_each_rank` is.
    not_need_stop, preempted_idx, layout
        As for `save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    _save(
        "speculate_save_output_topk", layout, sampled_token_ids, logprob_token_ids, logprob_scores,
        logprob_ranks, token_num_per_batch, cu_batch_token_offset, not_need_stop, seq_lens_decoder,
        prompt_lens, preempted_idx, message_flag, rank_id, save_each_rank,
    )  # fmt: skip


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
        If above 0, the message is sent only if `save_each_rank` is true.
    skip_chunk_prefill : bool
        Send 0 tokens for requests in chunked prefill.
    not_need_stop, seq_lens_decoder, prompt_lens, layout
        As for `speculate_save_output`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output`.
    """
    _save(
        "mtp_save_first_token", layout, x, not_need_stop, seq_lens_decoder, prompt_lens, step_idx, rank_id,
        save_each_rank, skip_chunk_prefill,
    )  # fmt: skip


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
    """Send the first token of a prefill node's requests with its logprobs, and their draft tokens.

    For each request that has any tokens, one more is sent than ``token_num_per_batch`` says: the first with
    logprobs, the draft tokens without (their columns, scores and ranks are 0).  Parameters as for
    `speculate_save_output_topk`, but `save_each_rank` lets ranks above 0 send, too.
    """
    _save(
        "mtp_save_first_token_with_topk", layout, sampled_token_ids, logprob_token_ids, logprob_scores,
        logprob_ranks, token_num_per_batch, cu_batch_token_offset, not_need_stop, seq_lens_decoder,
        prompt_lens, preempted_idx, message_flag, rank_id, save_each_rank,
    )  # fmt: skip


def flush(timeout: float | None = None) -> bool:
    """Wait until everything that was saved is in its queue.

    Host tensors are sent before their op returns; this concerns only tensors on a CUDA device.

    Parameters
    ----------
    timeout : float or None
        Seconds to wait, without the GIL; None waits forever, 0 only checks.

    Returns
    -------
    bool
        Whether everything is in its queue.

    Raises
    ------
    ValueError, QueueError, CudaError
        If a message could not be made or sent; the first such error since the last save.  CudaError only with
        ``FD_POSTPROC_CUDA=1``; otherwise it is logged.
    """
    return saves.flush(timeout)


def save_stats() -> dict[str, int | float]:
    """Counters of all save ops of this process, summed; see `fd_postproc.Sender.stats`.

    Also, for tensors on a CUDA device: lost : saves whose message could not be sent, raised by the next save;
    held, held_seconds : calls that waited because all buffers were full, and how long; compared, differed :
    messages that were also made on the CPU, and those that were not the same.
    """
    return saves.add_stats(host.senders.stats())


def _save(op: str, layout: Layout, *arguments: Any) -> None:
    """Send what was passed to the save op `op`, if this rank sends."""
    spec = SAVE_OPS[op]
    rank, each_rank, stop, flag, skip = spec.words
    if not (is_first(arguments[rank]) or (spec.every_rank and arguments[each_rank])):
        return
    if layout is not GPU:
        checked_layout(layout)
    message_flag = check_flag(arguments[flag]) if flag >= 0 else 0
    skip_prefill = skip >= 0 and bool(arguments[skip])
    inputs = {role: tensor_input(arguments[at], name, ROLES[role]) for role, name, at in spec.tensors}
    sizes = check_sizes(op, inputs)
    given: Given = (op, inputs, *sizes, layout, message_flag, skip_prefill)
    not_need_stop = arguments[stop]
    made: Comparison | bool = False
    if on_device(inputs):
        # The kernel comes before the copy, so that it finds the stream as busy as it will be later.
        made = saves.save(given, not_need_stop, [arguments[at] for _, _, at in spec.tensors])
        if made is True:
            return
        on_the_host = {
            role: tensor_input(on_host(arguments[at], name), name, ROLES[role])
            for role, name, at in spec.tensors
            if isinstance(inputs[role], DeviceInput)
        }
        given = (op, inputs | on_the_host, *sizes, layout, message_flag, skip_prefill)
        not_need_stop = on_host(not_need_stop, "not_need_stop")
    goes_on = host_flag(not_need_stop, "not_need_stop")
    try:
        host.save(given, goes_on)
    finally:
        if isinstance(made, Comparison):
            made.expect(given, goes_on)
