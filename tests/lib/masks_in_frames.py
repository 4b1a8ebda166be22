"""FastDeploy's own function that saves a step, with masks, and its own token processor's class as the plug-in
makes it: through a real queue, the masks in the frame or beside it.  A program: real_tree/test_masks.py."""

import importlib
import json
import os
import sys
import tempfile
from types import SimpleNamespace

import numpy as np

os.environ["FD_POSTPROC_PEER"] = sys.argv[1]
os.environ["INFERENCE_MSG_QUEUE_ID"] = str(os.getpid())
os.chdir(tempfile.mkdtemp())
paddle = importlib.import_module("paddle")
module = importlib.import_module("fastdeploy.model_executor.pre_and_post_process")
outputs = importlib.import_module("fastdeploy.worker.output")

import fd_postproc as fp  # noqa: E402
from fd_postproc.fastdeploy.worker import masks as masking  # noqa: E402
from fd_postproc.fastdeploy.worker.sending import SaveOp  # noqa: E402

stock = {}
for name in ("save_output", "save_output_topk", "speculate_save_output", "speculate_save_output_topk"):
    op = SaveOp(name, stock.setdefault(name, lambda *given: sys.exit(f"FastDeploy's op: {given}")))
    op._dialect = lambda batch: "packed"  # there are no ops on a CPU that could tell how keys are made
    setattr(module, name, op)
replaced = masking.replace_functions() if masking.engine_takes_masks() else []


def here(values, dtype):
    return paddle.to_tensor(np.array(values, dtype), place="cpu")


def window(masks):
    """What the sampler leaves: ids and which of them count, on the host."""
    width = max(map(len, masks))
    ids, kept = np.zeros((len(masks), width), np.int64), np.zeros((len(masks), width), bool)
    for row, mask in enumerate(masks):
        ids[row, : len(mask)], kept[row, : len(mask)] = mask, True
    return here(ids, "int64"), here(kept, "bool"), len(masks)


def raw(masks):
    """As this tree's function takes them."""
    resolves = hasattr(module, "_extract_sparse_indices")
    return window(masks) if resolves else [np.array(mask, np.int64) for mask in masks]


put = []
place = SimpleNamespace(put=put.append, send_pyobj=put.append)
parameter = masking.place_of_masks(module.save_output_normal)


def sampler(masks, logprobs=None, **more):
    fields = {"logprobs_tensors": logprobs, "sampling_mask": raw(masks), "logz_per_batch": None, **more}
    fields = {"sampled_token_ids": tokens, **fields}
    return SimpleNamespace(**fields)


tokens = here([[5], [6], [-1]], "int64")
preempted = here([[0], [1], [0]], "int32")
model = SimpleNamespace(
    mp_rank=0, not_need_stop=here([True], "bool"), index_to_batch_id={}, enable_pd_reorder=False,
    prompt_logprobs_list=None, accept_num=here([2, 0, 1], "int32"),
)  # fmt: skip
share = {
    "sampled_token_ids": tokens,
    "last_preempted_idx": preempted,
    "accept_tokens_cpu": here([[5, 6], [0, 0], [7, 0]], "int64"),
    "accept_num_cpu": here([2, 0, 1], "int32"),
    "seq_lens_decoder_cpu": here([[9], [9], [9]], "int32"),
    "prompt_lens_cpu": here([[3], [3], [3]], "int64"),
}
rows = outputs.LogprobsTensors(
    here([[5, 1], [6, 2], [7, 3]], "int64"), here([[-1, -2]] * 3, "float32"), here([1, 1, 2], "int64")
)
steps = {}


def received(channel, call):
    share["last_preempted_idx"] = here([[0], [1], [0]], "int32")
    with fp.Receiver(channel) as receiver:
        call()
        step = receiver.receive(10)
        found = put.pop() if put else None
        told = {
            "counts": step.counts,
            "masks": None if step.masks is None else sorted(step.masks.items()),
            "beside": found is not None,
        }
        steps[channel] = told
        receiver.remove()


normal = [[5, 9, 11], [6], [1, 2]]
for channel, logprobs in (("plain", None), ("topk", rows)):
    received(
        channel,
        lambda logprobs=logprobs: module.save_output_normal(
            model_output=model, sampler_output=sampler(normal, logprobs), share_inputs=share,
            **{parameter: place},
        ),
    )  # fmt: skip
if hasattr(module, "save_output_speculate"):
    share["sampled_token_ids"] = share["accept_tokens_cpu"]
    accepted = [[5, 9], [6], [7, 8, 10]]
    for channel, logprobs in (("spec", None), ("spec_topk", rows)):
        received(
            channel,
            lambda logprobs=logprobs: module.save_output_speculate(
                sampler_output=sampler(accepted, logprobs, cu_batch_token_offset=here([0, 2, 2], "int32")),
                model_output=model, share_inputs=share, local_rank=0, tensor_parallel_rank=0,
                **{parameter: place},
            ),
        )  # fmt: skip
print("told: " + json.dumps({"replaced": replaced, "parameter": parameter, "steps": steps}))
