"""Send your own sampler's arrays on ``spec_topk``, as FastDeploy's save op does.

python send_tensors.py QUEUE_ID STEPS

Three requests; each step accepts two tokens of the first, one of the second, and finds the third preempted.
The arrays may be NumPy's, PyTorch's or Paddle's, in host memory or on a GPU.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from fd_postproc.ops import flush, speculate_save_output_topk

BATCH, DRAFTS, COLUMNS = 3, 6, 5


def main() -> None:
    os.environ["INFERENCE_MSG_QUEUE_ID"] = sys.argv[1]
    os.environ["FD_POSTPROC_PEER"] = "compact/1"  # the reader has fd_postproc, too: default kernel limits do
    rng = np.random.default_rng(0)
    counts = np.array([2, 1, 0], np.int32)
    rows = int(counts.sum())
    for number in range(int(sys.argv[2])):
        tokens = np.zeros((BATCH, DRAFTS), np.int64)
        tokens[0, :2], tokens[1, 0] = (100 + number, 200 + number), 300 + number
        speculate_save_output_topk(
            sampled_token_ids=tokens,
            logprob_token_ids=rng.integers(0, 1000, (rows, COLUMNS)),
            logprob_scores=np.full((rows, COLUMNS), -0.5, np.float32),
            logprob_ranks=np.ones(rows, np.int64),
            token_num_per_batch=counts,
            cu_batch_token_offset=np.array([0, 2, 3], np.int32),
            not_need_stop=np.array([True]),
            seq_lens_decoder=np.full(BATCH, 20, np.int32),
            prompt_lens=np.full(BATCH, 10, np.int64),
            preempted_idx=np.array([0, 0, 1], np.int32),
            message_flag=3,
            rank_id=0,
            save_each_rank=False,
        )
    flush()  # only tensors on a GPU are still under way here
    print("sent")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all(one.isdigit() for one in sys.argv[1:3]):
        sys.exit(__doc__)
    main()
