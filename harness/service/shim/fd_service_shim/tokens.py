"""What the stand-in "model" says: functions of a request and a position, and of nothing else.

However requests are batched, and whatever the timing, a request gets the same tokens with the same
log-probabilities in the same steps.
"""

import numpy as np

TOP = 20  # FastDeploy's K
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def mix(value):
    """64 bits in, 64 bits out that look random (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = np.asarray(value, np.uint64) + _PRIME
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def seed_of(prompt, choice):
    """A request's number: of its prompt, and of which of `n` choices it is.

    Its ``seed`` is not asked: FastDeploy makes up one where a client gives none.
    """
    value = mix(np.uint64(choice))
    for token in prompt:
        value = mix(value ^ np.uint64(token))
    return value


def candidates(seeds, positions, first, last):
    """The likeliest tokens at some positions, each row a step of a request.

    Parameters
    ----------
    seeds, positions : array of uint64, shape (rows,)
    first, last : int
        Ids are from first to last - 1.

    Returns
    -------
    ids : array of int64, shape (rows, TOP + 1)
        Column 0 is the sampled one, which is also among the others.
    scores : array of float32, shape (rows, TOP + 1)
    ranks : array of int64, shape (rows,)
        Of the sampled one, from 1.
    """
    with np.errstate(over="ignore"):
        noise = mix(seeds ^ (np.asarray(positions, np.uint64) * _PRIME))
    span = np.uint64(last - first)
    columns = np.arange(TOP, dtype=np.uint64)
    top = (noise[:, None] % span + columns * np.uint64(37)) % span + np.uint64(first)
    start = (noise >> np.uint64(20)) % np.uint64(1000)
    scores = -(0.05 + start[:, None] / 2000.0 + 0.31 * columns)
    which = ((noise >> np.uint64(40)) % np.uint64(3)).astype(np.int64)
    rows = np.arange(len(noise))
    ids = np.concatenate([top[rows, which][:, None], top], axis=1).astype(np.int64)
    values = np.concatenate([scores[rows, which][:, None], scores], axis=1).astype(np.float32)
    return ids, values, which + 1
