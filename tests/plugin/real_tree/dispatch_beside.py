"""In a real FastDeploy: its save functions and `fd_postproc.ops`' on the same inputs; prints what differs."""

import copy
import inspect
import json
from types import SimpleNamespace

import numpy as np
import paddle
from fastdeploy.model_executor import pre_and_post_process as stock

import fd_postproc as fp
from fd_postproc import ops

BATCH = 6
MOST = {"none": 1, "naive": 1, "ngram": 6, "suffix": 6, "mtp": 3}
"""Accepted tokens of a step, by proposer."""


class Share(dict):
    """FastDeploy's inputs of a model: by key and by attribute."""

    __getattr__ = dict.__getitem__


def inputs(proposer, logprobs, cols, first, order, seed):
    """Arguments for one step: sampler's output, model's output, shared inputs, the proposer's inputs."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, MOST[proposer] + 1, BATCH).astype(np.int32)
    counts[:2] = 1
    if first:
        counts[:] = [1, 0, 1, 1, 0, 1]
    preempted = np.zeros((BATCH, 1), np.int32)
    preempted[4] = 1
    chunked = rng.random((BATCH, 1)) < 0.3
    width = 6 if proposer != "none" else 1
    tokens = rng.integers(3, 1000, (BATCH, width))
    if proposer == "none":
        tokens = np.where(rng.random((BATCH, 1)) < 0.2, -1, tokens)
        rows = BATCH
    else:
        rows = max(int(counts.sum()), 1)
    ids = rng.integers(3, 1000, (rows, cols))
    tensor = paddle.to_tensor
    logprob = SimpleNamespace(
        logprob_token_ids=tensor(ids),
        logprobs=tensor(-rng.random((rows, cols), np.float32)),
        selected_token_ranks=tensor(rng.integers(1, 9, rows)),
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lengths = {
        "seq_lens_decoder": np.where(chunked, 4, 12).astype(np.int32),
        "prompt_lens": np.full((BATCH, 1), 9),
    }
    sampler = SimpleNamespace(
        sampled_token_ids=tensor(tokens), logprobs_tensors=logprob if logprobs else None, logz_per_batch=None,
        cu_batch_token_offset=tensor(offsets), sampling_mask=None, token_num_per_batch=None, logits=None,
    )  # fmt: skip
    share = Share(
        sampled_token_ids=tensor(tokens), accept_tokens_cpu=tensor(tokens), accept_num_cpu=tensor(counts),
        last_preempted_idx=tensor(preempted),
        **{f"{name}_cpu": tensor(value) for name, value in lengths.items()},
    )  # fmt: skip
    mapped = dict(enumerate(order))
    drafts = Share(
        base_model_draft_tokens=tensor(tokens), step_idx=tensor((counts[:, None] > 0).astype(np.int64)),
        not_need_stop=tensor([True]), index_to_batch_id=mapped, enable_pd_reorder=order != sorted(order),
        **{name: tensor(value) for name, value in lengths.items()},
    )  # fmt: skip
    model = SimpleNamespace(
        not_need_stop=tensor([bool(seed % 2)]), mp_rank=0, index_to_batch_id=mapped,
        enable_pd_reorder=drafts.enable_pd_reorder, prompt_logprobs_list=None, accept_num=tensor(counts),
    )  # fmt: skip
    return sampler, model, share, drafts


def sent_by(save, arguments, channel):
    """The step that a save function sends, as values; the marks that it leaves."""
    sampler, model, share, drafts = copied(arguments)
    save(sampler, model, share, drafts)
    with fp.Receiver(channel) as receiver:
        step = receiver.receive(10)
        assert receiver.receive(0) is None
    ids, scores, ranks = step.tolists()
    return {
        "counts": list(step.counts), "ids": ids, "scores": scores, "ranks": ranks, "columns": step.cols,
        "goes on": step.stop_flag > 0, "type": step.flag,
        "marks": share["last_preempted_idx"].numpy().tolist(),
    }  # fmt: skip


def copied(value):
    """A deep copy; a copy of a tensor."""
    if isinstance(value, paddle.Tensor):
        return value.clone()
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**{name: copied(one) for name, one in vars(value).items()})
    if isinstance(value, dict):
        return type(value)({name: copied(one) for name, one in value.items()})
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return copy.deepcopy(value)


def pair(proposer, first):
    """FastDeploy's function and ours, called as FastDeploy's worker calls them."""
    if proposer == "none":
        return (
            lambda sampler, model, share, drafts: stock.save_output_normal(model, sampler, share),
            lambda sampler, model, share, drafts: ops.save_output_normal(model, sampler, share),
        )
    drafting = proposer == "mtp"

    def theirs(sampler, model, share, drafts):
        given = {"is_mtp_prefill": first, "proposer_share_inputs": drafts if drafting else None}
        stock.save_output_speculate(
            sampler_output=sampler, model_output=model, share_inputs=share, local_rank=0,
            tensor_parallel_rank=0, **given,
        )  # fmt: skip

    def ours(sampler, model, share, drafts):
        ops.save_output_speculate(
            sampler, model, share, drafts if drafting else None, 0, 0, is_mtp_prefill=first
        )

    return theirs, ours


def main():
    assert "proposer_share_inputs" in inspect.signature(stock.save_output_speculate).parameters
    same, wrong = 0, []
    straight, moved = list(range(BATCH)), [3, 0, 4, 1, 2, 5]
    for proposer in MOST:
        for first in (False, True) if proposer == "mtp" else (False,):
            for logprobs, cols in (False, 1), (True, 1), (True, 21):
                channel = {"none": ("plain", "topk")}.get(proposer, ("spec", "spec_topk"))[logprobs]
                # FastDeploy's own moves the rows of logprobs by slots, and not all of them.
                for order in (straight,) if logprobs else (straight, moved):
                    for seed in range(4):
                        arguments = inputs(proposer, logprobs, cols, first, order, seed)
                        theirs, ours = (sent_by(save, arguments, channel) for save in pair(proposer, first))
                        same += 1
                        if theirs != ours:
                            name = next(key for key in theirs if theirs[key] != ours[key])
                            row = f"{proposer}, first {first}, {channel}, {cols} columns, {order}, {seed}"
                            wrong.append(f"{row}: {name}: {theirs[name]} and {ours[name]}")
    print("told: " + json.dumps({"steps": same, "wrong": wrong[:20], "count": len(wrong)}))


main()
