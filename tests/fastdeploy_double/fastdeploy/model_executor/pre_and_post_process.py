"""How the worker calls the save ops.  They are globals of this module: a replacement is bound here."""

import paddle

from fastdeploy import envs
from fastdeploy.model_executor.ops.gpu import (
    mtp_save_first_token,
    mtp_save_first_token_with_topk,
    save_output,
    save_output_topk,
    speculate_save_output,
    speculate_save_output_topk,
)
from fastdeploy.output.stream_transfer_data import DecoderState, StreamTransferData

TARGET = 3


def _build_stream_transfer_data(
    output_tokens, pooler_outputs=None, logprobs=None, prompt_logprobs_list=None, sampling_mask=None
):
    """A step as a list of objects, which the caller puts into the queue of the thread that sends."""
    datas = []
    if output_tokens is not None:
        tokens = output_tokens.numpy().reshape([-1])
        for slot in range(len(tokens)):
            data = StreamTransferData(DecoderState.TEXT, slot, tokens=tokens[slot : slot + 1])
            if logprobs:
                data.logprobs = logprobs.slice_rows(slot, slot + 1)
            if prompt_logprobs_list:
                data.prompt_logprobs = prompt_logprobs_list[slot]
            if sampling_mask is not None:
                data.sampling_mask = sampling_mask[slot]
            datas.append(data)
        return datas
    for slot, output in enumerate(pooler_outputs or ()):
        if output is not None:
            vector = output.astype("float32") if output.dtype == paddle.bfloat16 else output
            datas.append(StreamTransferData(DecoderState.TEXT, slot, pooler_output=vector.numpy()))
    return datas


def save_output_normal(
    model_output,
    sampler_output,
    share_inputs,
    async_output_queue=None,
    save_each_rank=False,
    sampling_mask_async_queue=None,
):
    """Send a step without speculation."""
    last, logprobs = share_inputs["last_preempted_idx"], sampler_output.logprobs_tensors
    if logprobs is None:
        save_output(
            sampler_output.sampled_token_ids,
            model_output.not_need_stop,
            last,
            model_output.mp_rank,
            save_each_rank,
        )
    else:
        save_output_topk(
            share_inputs["sampled_token_ids"],
            logprobs.logprob_token_ids,
            logprobs.logprobs,
            logprobs.selected_token_ranks,
            model_output.not_need_stop,
            last,
            model_output.mp_rank,
        )
    _put_masks(sampler_output, model_output, sampling_mask_async_queue, None)
    last[:] = 0


def _put_masks(sampler_output, model_output, sampling_mask_async_queue, accepted):
    if getattr(sampler_output, "sampling_mask", None) is not None and model_output.mp_rank == 0:
        assert sampling_mask_async_queue is not None
        numbers = None if accepted is None else accepted.flatten().tolist()
        sampling_mask_async_queue.put((sampler_output.sampling_mask, numbers))


def save_output_specualate(  # FastDeploy's spelling
    sampler_output,
    model_output,
    share_inputs,
    proposer_share_inputs,
    local_rank,
    tensor_parallel_rank,
    save_each_rank=False,
    sampling_mask_async_queue=None,
    is_mtp_prefill=False,
):
    """Send a step of speculative decoding, or the first tokens of a prefill instance."""
    logprobs, skip = sampler_output.logprobs_tensors, bool(envs.ENABLE_V1_KVCACHE_SCHEDULER)
    last = share_inputs["last_preempted_idx"]
    lengths = share_inputs["seq_lens_decoder_cpu"], share_inputs["prompt_lens_cpu"]
    if logprobs is None and not is_mtp_prefill:
        speculate_save_output(
            share_inputs["accept_tokens_cpu"],
            share_inputs["accept_num_cpu"],
            model_output.not_need_stop,
            *lengths,
            last,
            model_output.mp_rank,
            save_each_rank,
            skip,
        )
    elif logprobs is None and tensor_parallel_rank == 0:
        mtp_save_first_token(
            proposer_share_inputs["base_model_draft_tokens"],
            proposer_share_inputs["not_need_stop"],
            proposer_share_inputs["seq_lens_decoder"],
            proposer_share_inputs["prompt_lens"],
            proposer_share_inputs["step_idx"],
            local_rank,
            save_each_rank,
            skip,
        )
    elif logprobs is not None and (tensor_parallel_rank == 0 or not is_mtp_prefill):
        save, sampled = speculate_save_output_topk, share_inputs["sampled_token_ids"]
        if is_mtp_prefill:
            save, sampled = mtp_save_first_token_with_topk, proposer_share_inputs["base_model_draft_tokens"]
        save(
            sampled,
            logprobs.logprob_token_ids,
            logprobs.logprobs,
            logprobs.selected_token_ranks,
            share_inputs["accept_num_cpu"],
            sampler_output.cu_batch_token_offset,
            model_output.not_need_stop,
            *lengths,
            last,
            TARGET,
            model_output.mp_rank,
            save_each_rank,
        )
    if not is_mtp_prefill:
        _put_masks(sampler_output, model_output, sampling_mask_async_queue, share_inputs["accept_num_cpu"])
    last[:] = 0
