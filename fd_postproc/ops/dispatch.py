"""Dispatch after sampling: passes a step's tensors to the save op that carries them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .._core import DRAFT, TARGET
from ..core.layout import GPU, Layout, checked_layout
from ..support.checks import kind_of, whole_number
from ..support.environment import V1_SCHEDULER
from .save import (
    mtp_save_first_token,
    mtp_save_first_token_with_topk,
    save_output,
    save_output_topk,
    speculate_save_output,
    speculate_save_output_topk,
)
from .slots import Slots, first_rows, order_of, rows_of

Function = TypeVar("Function", bound=Callable[..., None])
_READ = {  # of each argument: attributes, and whether it is asked for tensors by name
    "model_output": ("not_need_stop", "mp_rank", "index_to_batch_id", "enable_pd_reorder"),
    "sampler_output": ("logprobs_tensors",),
}


def _explained(function: Function) -> Function:
    """Decorate a dispatcher, so that after an error it names the argument that differs."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> None:
        try:
            function(*arguments, **named)
        except (AttributeError, LookupError, TypeError, ValueError):
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            if why := _unlike(bound.arguments):
                raise TypeError(why) from None
            raise

    return call  # type: ignore[return-value]


def _unlike(arguments: dict[str, Any]) -> str:
    """Description of what an argument lacks; "" if it has all required attributes."""
    checked_layout(arguments["layout"])
    for name, attributes in _READ.items():
        for attribute in attributes:
            if not hasattr(arguments[name], attribute):
                return f"{name} has no attribute {attribute!r}: it is {kind_of(arguments[name])}"
    share = arguments["share_inputs"]
    try:
        share["last_preempted_idx"]
    except Exception:
        return f"share_inputs gives no 'last_preempted_idx': it is {kind_of(share)}"
    return ""


@_explained
def save_output_normal(
    model_output: Any,
    sampler_output: Any,
    share_inputs: Any,
    async_output_queue: Any = None,
    save_each_rank: bool = False,
    sampling_mask_async_queue: Any = None,
    *,
    layout: Layout = GPU,
) -> None:
    """Send a step without speculation: on ``topk`` if it has logprobs, otherwise on ``plain``.

    The positional arguments are those of FastDeploy's function of this name; `layout` is ours.

    Parameters
    ----------
    model_output : object
        Attributes read: ``not_need_stop``, ``mp_rank``, ``index_to_batch_id``, ``enable_pd_reorder``.
        If the last is true, row i of every tensor belongs to slot ``index_to_batch_id[i]`` and is sent
        there; if the map moves anything, a row that it does not name belongs to no request and is not sent.
    sampler_output : object
        ``logprobs_tensors``: None, or an object with ``logprob_token_ids``, ``logprobs`` and
        ``selected_token_ranks``, one row per request.
    share_inputs : mapping
        ``sampled_token_ids``, int64 (batch, 1), or ``sampler_output.sampled_token_ids`` if it has none;
        ``last_preempted_idx``, int32, set to 0 in place once the message is in the queue (also on ranks that
        send nothing).
    async_output_queue, sampling_mask_async_queue
        Not used.
    save_each_rank : bool
        Ignored: ranks above 0 send nothing.
    layout : Layout, optional
        Geometry of the receiver's build.

    Raises
    ------
    TypeError, ValueError
        If a tensor or a number in it does not fit, ``index_to_batch_id`` sends two rows to one slot or a row
        beyond the layout, or the step has a sampling mask or logprobs that are still to be renormalised
        (``logz_per_batch``), which FastDeploy's function handles and this one does not.  Nothing was sent,
        and ``last_preempted_idx`` is unchanged.
    QueueError
        If the message could not be sent; ``last_preempted_idx`` is unchanged.
    """
    _refuse_what_is_not_carried(sampler_output)
    tokens = _sampled(share_inputs, sampler_output)
    slots = Slots(model_output, rows_of(tokens), layout)
    logprobs = sampler_output.logprobs_tensors
    x = slots.place(tokens, "sampled_token_ids", empty=-1)
    preempted = slots.place(share_inputs["last_preempted_idx"], "last_preempted_idx")
    state = model_output.not_need_stop, preempted, model_output.mp_rank
    if logprobs is None:
        save_output(x, *state, save_each_rank, layout=layout)
    else:
        save_output_topk(
            x,
            slots.place(logprobs.logprob_token_ids, "logprob_token_ids", empty=-1),
            slots.place(logprobs.logprobs, "logprobs"),
            slots.place(logprobs.selected_token_ranks, "selected_token_ranks"),
            *state,
            layout=layout,
        )
    share_inputs["last_preempted_idx"][:] = 0


@_explained
def save_output_speculate(
    sampler_output: Any,
    model_output: Any,
    share_inputs: Any,
    proposer_share_inputs: Any,
    local_rank: int,
    tensor_parallel_rank: int,
    save_each_rank: bool = False,
    sampling_mask_async_queue: Any = None,
    is_mtp_prefill: bool = False,
    *,
    message_flag: int = TARGET,
    skip_chunk_prefill: bool | None = None,
    layout: Layout = GPU,
) -> None:
    """Send a step of speculative decoding, or the first tokens of a prefill node.

    The positional arguments are those of FastDeploy's ``save_output_specualate`` (sic); the others are ours.

    ==================  =========================  ==================================
    step                without logprobs           with logprobs
    ==================  =========================  ==================================
    target              ``speculate_save_output``  ``speculate_save_output_topk``
    target, on a        ``mtp_save_first_token``   ``mtp_save_first_token_with_topk``
    prefill node
    draft               nothing                    ``speculate_save_output_topk``
    ==================  =========================  ==================================

    Parameters
    ----------
    sampler_output : object
        ``logprobs_tensors``: None, or an object with ``logprob_token_ids``, ``logprobs`` and
        ``selected_token_ranks``, one row per token; ``cu_batch_token_offset``, int32, the first row of each
        request.  Of a draft message: the proposer's, with ``sampled_token_ids``.
    model_output : object
        As for `save_output_normal`.
    share_inputs : mapping
        Of a target message: ``accept_num_cpu``, ``seq_lens_decoder_cpu``, ``prompt_lens_cpu`` and the tokens,
        ``accept_tokens_cpu``, or with logprobs ``sampled_token_ids`` (batch, width).
        ``last_preempted_idx`` as for `save_output_normal`, but a draft message leaves it unchanged, because
        the target message is the one that informs the engine.
    proposer_share_inputs : mapping or None
        Read for prefill nodes and draft messages only; None for methods without a proposer (naive, ngram,
        suffix).  Its attributes ``index_to_batch_id`` and ``enable_pd_reorder``, if it has them, apply to
        its tensors; otherwise those of `model_output` do.  Prefill node: ``base_model_draft_tokens``, and
        without logprobs ``not_need_stop``, ``seq_lens_decoder``, ``prompt_lens``, ``step_idx``.  Draft
        message: ``batch_token_num``, ``not_need_stop``, ``seq_lens_decoder``, ``prompt_lens``.
    local_rank : int
        The rank for ``mtp_save_first_token``; all other messages go by ``model_output.mp_rank``.
    tensor_parallel_rank : int
        A prefill node, and a draft message, are sent on rank 0 only.
    save_each_rank : bool
        Lets ranks above 0 send the first tokens of a prefill node.
    sampling_mask_async_queue
        Not used.
    is_mtp_prefill : bool
        Whether this is the prefill node of prefill-decode disaggregation with MTP.  Its message has one
        token more for each request than was accepted: the first of those that the proposer drafted.
    message_flag : {3, 4}, optional
        3 target, 4 draft.  FastDeploy sends draft messages from its proposer; here a second call does.
    skip_chunk_prefill : bool, optional
        Whether requests in chunked prefill send no token.  Default: the environment variable
        ``ENABLE_V1_KVCACHE_SCHEDULER``, a number; if it is unset, 1.  With logprobs they never send one.
    layout : Layout, optional
        Geometry of the receiver's build.

    Raises
    ------
    TypeError, ValueError, QueueError
        As for `save_output_normal`; also if a prefill node or draft message has no proposer inputs.
    """
    _refuse_what_is_not_carried(sampler_output)
    message_flag = whole_number(message_flag, "message_flag", -math.inf, math.inf)
    if message_flag not in (TARGET, DRAFT):
        raise ValueError(f"message_flag = {message_flag} is neither {TARGET} (target) nor {DRAFT} (draft)")
    logprobs = sampler_output.logprobs_tensors
    is_draft = message_flag == DRAFT
    if (is_draft or is_mtp_prefill) and tensor_parallel_rank == 0 and proposer_share_inputs is None:
        what = "a draft message" if is_draft else "a prefill node's first token"
        raise ValueError(f"{what} comes from proposer_share_inputs, which is None")
    if is_draft:
        if tensor_parallel_rank == 0 and logprobs is not None:
            _save_draft(
                sampler_output, model_output, share_inputs, proposer_share_inputs, save_each_rank, layout
            )
        return
    if is_mtp_prefill and tensor_parallel_rank != 0:
        pass  # rank 0 sends for all
    elif logprobs is not None:
        _save_target(
            sampler_output,
            model_output,
            share_inputs,
            proposer_share_inputs if is_mtp_prefill else None,
            save_each_rank,
            layout,
        )
    else:
        skip = _v1_scheduler() if skip_chunk_prefill is None else skip_chunk_prefill
        if is_mtp_prefill:
            _save_first(model_output, proposer_share_inputs, local_rank, save_each_rank, skip, layout)
        else:
            slots = Slots(model_output, rows_of(share_inputs["accept_tokens_cpu"]), layout)
            speculate_save_output(
                slots.named(share_inputs, "accept_tokens_cpu"),
                slots.named(share_inputs, "accept_num_cpu"),
                model_output.not_need_stop,
                slots.named(share_inputs, "seq_lens_decoder_cpu"),
                slots.named(share_inputs, "prompt_lens_cpu"),
                slots.named(share_inputs, "last_preempted_idx"),
                model_output.mp_rank,
                save_each_rank,
                skip,
                layout=layout,
            )
    share_inputs["last_preempted_idx"][:] = 0


def num_columns(requested: Iterable[int | None], layout: Layout = GPU) -> int:
    """Logprob columns that a step needs: the most alternatives that a request asked for, plus one.

    Parameters
    ----------
    requested : iterable of int or None
        Alternatives ("top logprobs") that each request of the step asked for; None: no logprobs.
    layout : Layout, optional
        Geometry of the receiver's build.

    Returns
    -------
    int
        1 to ``layout.top_k + 1``.  It is 1 even if no request asked: a channel with logprobs always has the
        column of the sampled tokens.

    Raises
    ------
    TypeError
        If what a request asked for is not a whole number, or `requested` is not a list of them.
    ValueError
        If a request asked for less than 0 (FastDeploy's -1, the whole vocabulary, does not fit a message) or
        for more than ``layout.top_k``.
    """
    checked_layout(layout)
    try:
        asked_for = iter(requested)
    except TypeError:
        raise TypeError(f"requested must be a list of numbers or None, not {kind_of(requested)}") from None
    most = 0
    for request, asked in enumerate(asked_for):
        if asked is None:
            continue
        number = whole_number(asked, f"requested[{request}]", -math.inf, math.inf)
        if not 0 <= number <= layout.top_k:
            raise ValueError(
                f"request {request} asked for {number} top logprobs; a message carries 0 to {layout.top_k} "
                "(top_k of the layout)"
            )
        most = max(most, number)
    return most + 1


# ---- One message each ------------------------------------------------------------------------------------


def _save_target(
    sampler_output: Any,
    model_output: Any,
    share_inputs: Any,
    proposer: Any,
    save_each_rank: bool,
    layout: Layout,
) -> None:
    """Target tokens with logprobs; on a prefill node, with a `proposer`, with a draft token."""
    counts = share_inputs["accept_num_cpu"]
    batch = rows_of(counts)
    slots = Slots(model_output, batch, layout)
    if proposer is None:
        tokens = slots.place(first_rows(_sampled(share_inputs, sampler_output), batch), "sampled_token_ids")
    else:
        drafted = first_rows(proposer["base_model_draft_tokens"], batch)
        tokens = Slots(order_of(proposer, model_output), batch, layout).place(
            drafted, "base_model_draft_tokens"
        )
    save = speculate_save_output_topk if proposer is None else mtp_save_first_token_with_topk
    save(
        tokens,
        *_logprobs(sampler_output),
        slots.place(counts, "accept_num_cpu"),
        slots.place(sampler_output.cu_batch_token_offset, "cu_batch_token_offset"),
        model_output.not_need_stop,
        slots.named(share_inputs, "seq_lens_decoder_cpu"),
        slots.named(share_inputs, "prompt_lens_cpu"),
        slots.named(share_inputs, "last_preempted_idx"),
        TARGET,
        model_output.mp_rank,
        save_each_rank,
        layout=layout,
    )


def _save_first(
    model_output: Any, proposer: Any, local_rank: int, save_each_rank: bool, skip: bool, layout: Layout
) -> None:
    slots = Slots(order_of(proposer, model_output), rows_of(proposer["base_model_draft_tokens"]), layout)
    mtp_save_first_token(
        slots.named(proposer, "base_model_draft_tokens"),
        proposer["not_need_stop"],
        slots.named(proposer, "seq_lens_decoder"),
        slots.named(proposer, "prompt_lens"),
        slots.named(proposer, "step_idx"),
        local_rank,
        save_each_rank,
        skip,
        layout=layout,
    )


def _save_draft(
    sampler_output: Any,
    model_output: Any,
    share_inputs: Any,
    proposer: Any,
    save_each_rank: bool,
    layout: Layout,
) -> None:
    tokens = sampler_output.sampled_token_ids
    batch = rows_of(tokens)
    slots = Slots(order_of(proposer, model_output), batch, layout)
    speculate_save_output_topk(
        slots.place(tokens, "sampled_token_ids"),
        *_logprobs(sampler_output),
        slots.place(first_rows(proposer["batch_token_num"], batch), "batch_token_num"),
        slots.place(sampler_output.cu_batch_token_offset, "cu_batch_token_offset"),
        proposer["not_need_stop"],
        slots.named(proposer, "seq_lens_decoder"),
        slots.named(proposer, "prompt_lens"),
        slots.named(share_inputs, "last_preempted_idx"),
        DRAFT,
        model_output.mp_rank,
        save_each_rank,
        layout=layout,
    )


def _logprobs(sampler_output: Any) -> tuple[Any, Any, Any]:
    """The logprobs in their rows: cu_batch_token_offset maps them to requests."""
    logprobs = sampler_output.logprobs_tensors
    return logprobs.logprob_token_ids, logprobs.logprobs, logprobs.selected_token_ranks


def _sampled(share_inputs: Any, sampler_output: Any) -> Any:
    if "sampled_token_ids" in share_inputs:
        return share_inputs["sampled_token_ids"]
    return sampler_output.sampled_token_ids


def _refuse_what_is_not_carried(sampler_output: Any) -> None:
    """Raise for data that an engine expects and this message cannot carry."""
    if getattr(sampler_output, "sampling_mask", None) is not None:
        raise ValueError(
            "the step has a sampling mask, which FastDeploy sends outside the queue and this function does "
            "not send; turn enable_keep_sampling_mask off"
        )
    if (
        sampler_output.logprobs_tensors is not None
        and getattr(sampler_output, "logz_per_batch", None) is not None
    ):
        raise ValueError(
            "the logprobs are still to be renormalised with logz_per_batch; do that, then set it to None"
        )


def _v1_scheduler() -> bool:
    """``ENABLE_V1_KVCACHE_SCHEDULER``, as FastDeploy's envs read it."""
    return bool(V1_SCHEDULER.value)
