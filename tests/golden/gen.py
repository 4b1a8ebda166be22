"""The inputs that FastDeploy's save ops were given: pure functions of batch, columns and seed.

NumPy only, and the same arrays under every version of it: the numbers come from splitmix64, element i of
array `tag` being ``splitmix64(seed * 0x1000003 + tag * 0x10001 + i)``.  Argument names are those of the ops.
"""

import numpy as np

VOCABULARY = 151936


def u64(seed, tag, n):
    base = (seed * 0x1000003 + tag * 0x10001) % (1 << 64)
    z = np.uint64(base) + np.arange(n, dtype=np.uint64)
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def below(limit, seed, tag, shape):
    return (u64(seed, tag, int(np.prod(shape))) % np.uint64(limit)).reshape(shape)


def tokens(seed, tag, shape):
    return below(VOCABULARY, seed, tag, shape).astype(np.int64)


def scores(seed, tag, shape):
    """Multiples of 1/32 in (-32, 0]: a float32 holds them exactly."""
    return -below(1024, seed, tag, shape).astype(np.float32) / np.float32(32)


def ranks(seed, tag, shape):
    return below(64, seed, tag, shape).astype(np.int64) + 1


def preempted(seed, bsz):
    return (below(11, seed, 90, (bsz, 1)) == 3).astype(np.int32)


def plain(bsz, seed, stop=False):
    x = tokens(seed, 1, (bsz, 1))
    code = below(13, seed, 91, (bsz, 1))
    x[code == 5] = -1  # nothing this step
    x[code == 6] = -3  # recovery stop
    return {"x": x, "not_need_stop": np.array([not stop]), "preempted_idx": preempted(seed, bsz)}


def topk(bsz, cols, seed, stop=False):
    inputs = plain(bsz, seed, stop)
    ids = tokens(seed, 2, (bsz, cols))
    ids[:, 0] = inputs["x"][:, 0]  # as the sampler builds it
    return {
        **inputs,
        "topk_ids": ids,
        "logprob_scores": scores(seed, 3, (bsz, cols)),
        "ranks": ranks(seed, 4, (bsz,)),
    }


def spec(bsz, seed, width=6, stop=False):
    accepted = below(min(width, 6) + 1, seed, 11, (bsz,)).astype(np.int32)
    accepted[below(17, seed, 92, (bsz,)) == 7] = -3
    return {"accept_tokens": tokens(seed, 10, (bsz, width)), "accept_num": accepted, **state(bsz, seed, stop)}


def state(bsz, seed, stop):
    """What the speculative ops are told about the requests; one in five is still inside its prompt."""
    prompt = below(50, seed, 12, (bsz, 1)).astype(np.int64) + 10
    chunked = below(5, seed, 13, (bsz, 1)) == 0
    return {
        "not_need_stop": np.array([not stop]),
        "seq_lens_decoder": np.where(chunked, prompt - 1, prompt + 3).astype(np.int32),
        "prompt_lens": prompt,
        "preempted_idx": preempted(seed, bsz),
    }


def spectopk(bsz, cols, seed, width=6, maxnum=6, stop=False, legacy_stride=False, flat_sampled=False):
    number = below(maxnum + 1, seed, 21, (bsz,)).astype(np.int32)
    offsets = np.zeros(bsz + 1, np.int32)
    offsets[1:] = np.cumsum(number)
    sampled = rows = max(int(offsets[-1]), 1)
    if legacy_stride and cols != 21:
        # Legacy ops step 21 columns whatever `cols` is: padded, so that they stay inside.
        rows = (rows * 21 + cols - 1) // cols + 1
    return {
        "sampled_token_ids": tokens(seed, 22, (sampled, 1) if flat_sampled else (bsz, width)),
        "logprob_token_ids": tokens(seed, 23, (rows, cols)),
        "logprob_scores": scores(seed, 24, (rows, cols)),
        "logprob_ranks": ranks(seed, 25, (rows,)),
        "token_num_per_batch": number,
        "cu_batch_token_offset": offsets,
        **state(bsz, seed, stop),
    }


def mtpfirst(bsz, seed, width=6, stop=False):
    inputs = state(bsz, seed, stop)
    del inputs["preempted_idx"]
    step = below(3, seed, 31, (bsz, 1)).astype(np.int64)
    return {"x": tokens(seed, 30, (bsz, width)), **inputs, "step_idx": step}
