"""What FastDeploy's receive ops write into the processor's tensors, from the bytes of a packed message."""

import numpy as np

from tests import reference
from tests.restated.workload import flat_view

MOST = 6
COUNTS = 12  # where the counts of a message with log-probabilities begin


def fill(channel, tensors, payload):
    """Write a message into the tensors of its channel: tokens, and with logprobs scores and ranks.

    A count above six is cut to six; the op would go on into the next slot.
    """
    arrays = [flat_view(tensor) for tensor in tensors]
    if channel == "spec":  # the op copies all cells
        arrays[0][:] = np.frombuffer(payload, "<i4", len(arrays[0]))
    elif channel == "spec_topk":
        words = np.frombuffer(bytearray(payload), "<i4")
        counts = words[3 : 3 + words[2]]
        claimed = counts.copy()
        np.minimum(counts, MOST, out=counts)
        reference.fill(words.tobytes(), channel, *arrays)
        arrays[0][3 : 3 + len(claimed)] = claimed
    else:
        reference.fill(payload, channel, *arrays)


def fill_empty(channel, tensors):
    """What the ops leave if nothing came."""
    tokens = flat_view(tensors[0])
    tokens[0], tokens[1] = -2, 0
    if channel == "spec_topk":
        tokens[2] = 0
