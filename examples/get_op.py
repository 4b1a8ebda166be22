"""FastDeploy's get op for ``topk``, under its own name and arguments: python get_op.py [numpy|paddle]

A step is sent first, so that there is something to get.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import fd_postproc as fp
from fd_postproc.ops import get_output_topk

QUEUE_ID, SLOTS, K = 50125, fp.GPU.max_batch, fp.GPU.top_k


def tensors(framework: str) -> tuple[Any, Any, Any]:
    """Token ids behind two header words, scores and ranks, as FastDeploy's engine allocates them."""
    ids = np.full(2 + SLOTS * (K + 1), 2, np.int64)
    scores, ranks = np.zeros(SLOTS * (K + 1), np.float32), np.zeros(SLOTS, np.int64)
    if framework == "paddle":
        import paddle

        return paddle.to_tensor(ids), paddle.to_tensor(scores), paddle.to_tensor(ranks)
    return ids, scores, ranks


def main() -> None:
    os.environ["INFERENCE_MSG_QUEUE_ID"] = str(QUEUE_ID)
    with fp.Sender("topk", QUEUE_ID, dialect="compact") as sender:
        sender.send_arrays([1, 1], [[11, 7], [42, 5]], [[-0.1, -2.5], [-0.7, -0.9]], [1, 1])
    ids, scores, ranks = tensors(sys.argv[1] if len(sys.argv) > 1 else "numpy")
    get_output_topk(ids, scores, ranks, K, 0, True)  # rank 0; wait
    batch, columns = int(ids[1]) & 0xFFFF, int(ids[1]) >> 16
    used = batch * columns
    print("tokens", np.asarray(ids)[2 : 2 + used].reshape(batch, columns).tolist())
    print("scores", np.asarray(scores)[:used].reshape(batch, columns).astype(float).round(1).tolist())
    print("ranks", np.asarray(ranks)[:batch].tolist())
    with fp.Receiver("topk", QUEUE_ID) as receiver:
        receiver.remove()


if __name__ == "__main__":
    main()
