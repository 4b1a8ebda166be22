"""The CUDA proposer of newer versions, which sends the draft messages there.

It gives `speculate_save_output_topk` 12 arguments: there is no `preempted_idx` before the flag.
"""

from fastdeploy.model_executor.ops.gpu import speculate_save_output_topk

DRAFT = 4


def save_draft(sampler_output, inputs, real_bsz, local_rank, use_ep):
    """Send the draft tokens' logprobs."""
    logprobs = sampler_output.logprobs_tensors
    speculate_save_output_topk(
        sampler_output.sampled_token_ids,
        logprobs.logprob_token_ids,
        logprobs.logprobs,
        logprobs.selected_token_ranks,
        inputs["batch_token_num"][:real_bsz],
        inputs["cu_batch_token_offset"][:real_bsz],
        inputs["not_need_stop"],
        inputs["seq_lens_decoder"],
        inputs["prompt_lens"],
        DRAFT,
        local_rank,
        use_ep,
    )
