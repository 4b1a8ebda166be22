"""Steps of random content, the same for the same seed."""

import numpy as np

import fd_postproc as fp


def random_step(channel, seed, *, batch=None, cols=None, accepted=None, layout=fp.GPU):
    """A step that a compact frame of the layout can carry.

    Parameters
    ----------
    batch, cols : int, optional
        Default: random, up to the layout's.
    accepted : int, optional
        Tokens of every request.  Default: random, codes among them.
    """
    rng = np.random.default_rng(seed)
    speculative, logprobs = channel.startswith("spec"), channel.endswith("topk")
    batch = int(rng.integers(0, layout.max_batch + 1)) if batch is None else batch
    cols = int(rng.integers(1, layout.top_k + 2)) if cols is None else cols
    if accepted is not None:
        counts = np.full(batch, accepted)
    else:
        counts = rng.integers(0, layout.max_draft + 1, batch) if speculative else np.ones(batch, int)
        code = rng.random(batch) < 0.2
        counts[code] = rng.choice([-1, -3, -9], int(code.sum()))
    rows = int(np.maximum(counts, 0).sum())
    keywords = {"flag": int(rng.choice([0, 3, 4])), "stop_flag": int(rng.integers(-(1 << 31), 1 << 31))}
    if not logprobs:
        return fp.Step.from_arrays(channel, counts, rng.integers(0, 1 << 31, rows), **keywords)
    ids = rng.integers(-(1 << 31), 1 << 31, (rows, cols))
    if not speculative:
        ids[:, 0] &= 0x7FFFFFFF  # a negative token would be a code
    scores = -rng.random((rows, cols), dtype=np.float32) * 30
    special = rng.random((rows, cols)) < 0.1
    scores[special] = rng.choice(np.array([np.nan, -np.inf, np.inf, -0.0], np.float32), int(special.sum()))
    ranks = rng.integers(-(1 << 31), 1 << 31, rows)
    return fp.Step.from_arrays(channel, counts, ids, scores, ranks, **keywords, as_recorded=True)
