"""FastDeploy's get ops as its TokenProcessor calls them."""

import numpy as np

from fd_postproc import ops

SHAPES = {
    "plain": [(514, 1)],
    "topk": [(512 * 21 + 2, 1), (512 * 21, 1), (512,)],
    "spec": [(1794,)],
    "spec_topk": [(512 * 126 + 515, 1), (512 * 126, 1), (3072,)],
}


def fresh(channel):
    """New tensors for a get op."""
    fills = [(2, np.int64), (0, np.float32), (0, np.int64)]
    return [np.full(shape, *fill) for shape, fill in zip(SHAPES[channel], fills, strict=False)]


def get(channel, tensors, wait=True, rank=0, k=20, each=False, **keywords):
    """Call the get op of a channel; what it returns."""
    if channel == "plain":
        return ops.get_output(*tensors, rank, wait, **keywords)
    if channel == "spec":
        return ops.speculate_get_output(*tensors, rank, wait, each, **keywords)
    if channel == "topk":
        return ops.get_output_topk(*tensors, k, rank, wait, **keywords)
    return ops.speculate_get_output_topk(*tensors, k, rank, wait, **keywords)
