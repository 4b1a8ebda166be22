"""Send steps by FastDeploy's functions after sampling, here ``save_output_speculate``.

python after_sampling.py QUEUE_ID

A step of a decode node on two ranks, without a proposer, in a batch that prefill-decode reordering has moved;
then the first tokens of a prefill node.  What comes out of the queue is printed by slot.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np

import fd_postproc as fp
from fd_postproc.ops import save_output_speculate


def model_output(rank: int, order: dict[int, int]) -> SimpleNamespace:
    """What FastDeploy calls so; `order` has the slot of each row of the tensors."""
    return SimpleNamespace(
        not_need_stop=np.array([True]), mp_rank=rank, index_to_batch_id=order, enable_pd_reorder=bool(order)
    )


def main() -> None:
    queue_id = int(sys.argv[1])
    os.environ["INFERENCE_MSG_QUEUE_ID"] = str(queue_id)
    sampler_output = SimpleNamespace(logprobs_tensors=None)
    share_inputs = {
        "accept_tokens_cpu": np.array([[30, 31], [10, 0], [20, 21]]),
        "accept_num_cpu": np.array([2, 1, 2], np.int32),
        "seq_lens_decoder_cpu": np.full(3, 20, np.int32),
        "prompt_lens_cpu": np.full(3, 10, np.int64),
        "last_preempted_idx": np.zeros(3, np.int32),
    }
    for rank in 0, 1:  # the second sends nothing
        moved = model_output(rank, {0: 2, 1: 0, 2: 1})
        save_output_speculate(sampler_output, moved, share_inputs, None, rank, rank)

    proposer = {
        "base_model_draft_tokens": np.array([[7, 8]]),  # the first token, and what was drafted after it
        "not_need_stop": np.array([True]),
        "seq_lens_decoder": np.array([20], np.int32),
        "prompt_lens": np.array([10]),
        "step_idx": np.array([1]),
    }
    save_output_speculate(
        sampler_output, model_output(0, {}), share_inputs, proposer, 0, 0, is_mtp_prefill=True
    )

    with fp.Receiver("spec", queue_id) as receiver:
        while step := receiver.receive(timeout=0):
            print([list(step.token_ids(slot)) for slot in range(step.batch)])
        receiver.remove()


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all(one.isdigit() for one in sys.argv[1:2]):
        sys.exit(__doc__)
    main()
