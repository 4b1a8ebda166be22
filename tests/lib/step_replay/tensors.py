"""What FastDeploy's receive ops write into the processor's tensors, from the bytes of a packed message.

Only the cells that the message speaks of are written, except on `spec`, where the op copies all of them.  A
count above six is cut to six here; the op would go on into the next slot.
"""

import numpy as np

from tests.restated.workload import flat_view

COLUMNS, DRAFTS = 21, 6
SLOT = np.dtype(
    [("ids", "<i4", (DRAFTS, COLUMNS)), ("scores", "<f4", (DRAFTS, COLUMNS)), ("ranks", "<i4", DRAFTS)]
)
PLAIN, TOPK_SCORES, TOPK_RANKS, SPEC_TOPK_SLOTS = 8, 43016, 86024, 2060
SLOTS = 512


def fill(channel, tensors, payload):
    """Write a message into the tensors of its channel: tokens, and with logprobs scores and ranks."""
    _FILL[channel](*map(flat_view, tensors), payload)


def fill_empty(channel, tensors):
    """What the ops leave if nothing came."""
    tokens = flat_view(tensors[0])
    tokens[0], tokens[1] = -2, 0
    if channel == "spec_topk":
        tokens[2] = 0


def _words(payload, offset, count):
    return np.frombuffer(payload, "<i4", count, offset)


def _fill_plain(tokens, payload):
    batch = int(_words(payload, 4, 1)[0])
    tokens[: batch + 2] = _words(payload, 0, batch + 2)


def _fill_topk(tokens, scores, ranks, payload):
    header = _words(payload, 0, 2)
    batch, columns = int(header[1]) & 0xFFFF, int(header[1]) >> 16
    cells = batch * columns
    tokens[:2] = header
    tokens[2 : 2 + cells] = _words(payload, PLAIN, cells)
    scores[:cells] = np.frombuffer(payload, "<f4", cells, TOPK_SCORES)
    ranks[:batch] = _words(payload, TOPK_RANKS, batch)


def _fill_spec(tokens, payload):
    tokens[:] = _words(payload, 0, len(tokens))


def _fill_spec_topk(tokens, scores, ranks, payload):
    header = _words(payload, 0, 3)
    columns, batch = int(header[1]) >> 8, int(header[2])
    counts = _words(payload, 12, batch)
    tokens[:3] = header
    tokens[3 : 3 + batch] = counts
    ids_out = tokens[3 + SLOTS :].reshape(SLOTS, DRAFTS, COLUMNS)
    scores_out, ranks_out = scores.reshape(SLOTS, DRAFTS, COLUMNS), ranks.reshape(SLOTS, DRAFTS)
    slots = np.frombuffer(payload, SLOT, batch, SPEC_TOPK_SLOTS)
    for i in np.flatnonzero(counts > 0):
        rows = min(counts[i], DRAFTS)
        ids_out[i, :rows, :columns] = slots["ids"][i, :rows, :columns]
        scores_out[i, :rows, :columns] = slots["scores"][i, :rows, :columns]
        ranks_out[i, :rows] = slots["ranks"][i, :rows]


_FILL = {"plain": _fill_plain, "topk": _fill_topk, "spec": _fill_spec, "spec_topk": _fill_spec_topk}
