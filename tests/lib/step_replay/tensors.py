"""What FastDeploy's receive ops write into the processor's tensors, from the bytes of a packed message."""

import numpy as np

from tests import reference
from tests.restated.workload import flat_view

MOST, TARGET = 6, 3


def fill(channel, tensors, payload):
    """Write a message into the tensors of its channel: tokens, and with logprobs scores and ranks.

    A count above six is cut to six; the op would go on into the next slot.
    """
    arrays = [flat_view(tensor) for tensor in tensors]
    if channel == "spec":  # the op copies all cells
        arrays[0][:] = np.frombuffer(payload, "<i4", len(arrays[0]))
    elif channel == "spec_topk":  # the reference refuses counts and types that the op believes
        words = np.frombuffer(bytearray(payload), "<i4")
        claimed = words[: 3 + words[2]].copy()
        words[1] = words[1] & ~0xFF | TARGET
        np.minimum(words[3 : len(claimed)], MOST, out=words[3 : len(claimed)])
        reference.fill(words.tobytes(), channel, *arrays)
        arrays[0][: len(claimed)] = claimed
    else:
        reference.fill(payload, channel, *arrays)


def fill_empty(channel, tensors):
    """What the ops leave if nothing came."""
    tokens = flat_view(tensors[0])
    tokens[0], tokens[1] = -2, 0
    if channel == "spec_topk":
        tokens[2] = 0
