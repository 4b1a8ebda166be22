"""Random inputs of FastDeploy's save ops, by the ops' own argument names."""

from itertools import accumulate

import numpy as np

import fd_postproc as fp
from tests import reference

CHANNELS = {
    "save_output": "plain",
    "save_output_topk": "topk",
    "speculate_save_output": "spec",
    "mtp_save_first_token": "spec",
    "speculate_save_output_topk": "spec_topk",
    "mtp_save_first_token_with_topk": "spec_topk",
}
ATTRIBUTES = {
    "rank_id": 0,
    "save_each_rank": False,
    "skip_prefill": True,
    "skip_chunk_prefill": True,
    "message_flag": 3,
}


def arguments(op, inputs, **attributes):
    """The op's positional arguments."""
    values = {**ATTRIBUTES, **inputs, **attributes}
    return [values[name] for name in reference.SAVE_OPS[op]]


def random_inputs(op, batch, cols, seed, layout=fp.GPU):
    """Tensors that the op can send: codes, preempted and chunked requests among them."""
    rng = np.random.default_rng(seed)
    return _MAKERS[op](rng, batch, cols, layout)


def calm(op, batch=3, cols=4):
    """Inputs of which every number is fine and every request is sent."""
    rows = batch if op == "save_output_topk" else 2 * batch
    table, counts = np.arange(6 * batch).reshape(batch, 6), np.full(batch, 2, np.int32)
    given = {
        "x": table if op == "mtp_save_first_token" else np.arange(batch).reshape(batch, 1),
        **dict.fromkeys(["accept_tokens", "sampled_token_ids"], table),
        **dict.fromkeys(["accept_num", "token_num_per_batch"], counts),
        **dict.fromkeys(["topk_ids", "logprob_token_ids"], np.arange(rows * cols).reshape(rows, cols)),
        **dict.fromkeys(["ranks", "logprob_ranks"], np.arange(rows)),
        "logprob_scores": np.zeros((rows, cols), np.float32),
        "cu_batch_token_offset": np.arange(batch + 1, dtype=np.int32) * 2,
        "not_need_stop": np.array([True]),
        "seq_lens_decoder": np.full((batch, 1), 9, np.int32),
        "prompt_lens": np.ones((batch, 1), np.int64),
        "preempted_idx": np.zeros((batch, 1), np.int32),
        "step_idx": np.ones((batch, 1), np.int64),
    }
    return {name: array for name, array in given.items() if name in reference.SAVE_OPS[op]}


def _tokens(rng, shape):
    return rng.integers(0, 1 << 31, shape, dtype=np.int64)


def _scores(rng, shape):
    scores = -rng.random(shape, dtype=np.float32) * 30
    special = rng.random(shape) < 0.1
    scores[special] = rng.choice(np.array([np.nan, -np.inf, np.inf, -0.0], np.float32), int(special.sum()))
    return scores


def _int32(rng, shape):
    return rng.integers(-(1 << 31), 1 << 31, shape, dtype=np.int64)


def _state(rng, batch):
    prompts = rng.integers(1, 100, (batch, 1), dtype=np.int64)
    chunked = rng.random((batch, 1)) < 0.2
    return {
        "not_need_stop": rng.random(1) < 0.5,
        "seq_lens_decoder": np.where(chunked, prompts - 1, prompts + rng.integers(0, 9)).astype(np.int32),
        "prompt_lens": prompts,
        "preempted_idx": _preempted(rng, batch),
    }


def _preempted(rng, batch):
    return rng.choice(np.array([0, 0, 0, 0, 0, 1, 2], np.int32), (batch, 1))


def _plain(rng, batch, cols, layout):
    x = _tokens(rng, (batch, 1))
    code = rng.random((batch, 1)) < 0.2
    x[code] = rng.choice([-1, -3, -9], int(code.sum()))
    return {"x": x, "not_need_stop": rng.random(1) < 0.5, "preempted_idx": _preempted(rng, batch)}


def _topk(rng, batch, cols, layout):
    return {
        **_plain(rng, batch, cols, layout),
        "topk_ids": _int32(rng, (batch, cols)),
        "logprob_scores": _scores(rng, (batch, cols)),
        "ranks": _int32(rng, batch),
    }


def _counts(rng, batch, most):
    counts = rng.integers(0, most + 1, batch, dtype=np.int32)
    code = rng.random(batch) < 0.1
    counts[code] = rng.choice([-1, -3, -9], int(code.sum()))
    return counts


def _speculate(rng, batch, cols, layout):
    width = int(rng.integers(1, layout.max_draft + 3))  # wider and narrower than the slots
    counts = _counts(rng, batch, min(width, layout.max_draft))
    return {"accept_tokens": _int32(rng, (batch, width)), "accept_num": counts, **_state(rng, batch)}


def _first(rng, batch, cols, layout):
    inputs = _state(rng, batch)
    del inputs["preempted_idx"]
    width = int(rng.integers(2, layout.max_draft + 3))
    return {"x": _tokens(rng, (batch, width)), **inputs, "step_idx": rng.integers(0, 4, (batch, 1))}


def _logprobs(rng, batch, cols, counts, width):
    used = np.maximum(counts, 0)
    gaps = rng.integers(0, 2, batch)  # requests' rows need not lie side by side
    offsets = np.array([*accumulate(used + gaps, initial=0)], np.int32)
    rows = max(int(offsets[-1]), 1)
    return {
        "sampled_token_ids": _int32(rng, (batch, width)),
        "logprob_token_ids": _int32(rng, (rows, cols)),
        "logprob_scores": _scores(rng, (rows, cols)),
        "logprob_ranks": _int32(rng, rows),
        "token_num_per_batch": counts,
        "cu_batch_token_offset": offsets,
        **_state(rng, batch),
    }


def _spoil(rng, inputs):
    """Numbers that do not fit, where nobody reads them: those of preempted requests."""
    for i in np.flatnonzero(inputs["preempted_idx"] == 1):
        kind = rng.integers(0, 4)
        if kind == 0:
            inputs["token_num_per_batch"][i] = 99
        elif kind == 1:
            inputs["cu_batch_token_offset"][i] = rng.choice([-5, 1 << 30])
        elif kind == 2:
            inputs["sampled_token_ids"][i] ^= 1 << 40
    return inputs


def _speculate_topk(rng, batch, cols, layout):
    width = int(rng.integers(1, layout.max_draft + 3))
    counts = _counts(rng, batch, min(width, layout.max_draft))
    return _spoil(rng, _logprobs(rng, batch, cols, counts, width))


def _first_topk(rng, batch, cols, layout):
    width = int(rng.integers(1, layout.max_draft + 3))
    counts = _counts(rng, batch, min(width, layout.max_draft) - 1)
    return _spoil(rng, _logprobs(rng, batch, cols, counts, width))


_MAKERS = {
    "save_output": _plain,
    "save_output_topk": _topk,
    "speculate_save_output": _speculate,
    "mtp_save_first_token": _first,
    "speculate_save_output_topk": _speculate_topk,
    "mtp_save_first_token_with_topk": _first_topk,
}
