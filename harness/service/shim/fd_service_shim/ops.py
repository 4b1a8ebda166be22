"""``fastdeploy.model_executor.ops.gpu`` without a GPU build.

The get ops are this project's.  The save ops are what FastDeploy's are to the kernel and to the engine: each
message has the channel's full size, and one that cannot be sent is a line on standard output and lost.  All
other ops are there and raise when they are called.
"""

import os

import numpy as np

NOTHING = -1
PREEMPTED = -9


def fill(module):
    """Give FastDeploy's module of ops what a GPU build would have."""
    from fd_postproc import ops

    names = ("get_output", "get_output_ep", "get_output_topk")
    for name in (*names, "speculate_get_output", "speculate_get_output_topk"):
        setattr(module, name, getattr(ops, name))
    for op in (
        save_output, save_output_topk, speculate_save_output, speculate_save_output_topk,
        mtp_save_first_token, mtp_save_first_token_with_topk,
    ):  # fmt: skip
        op.__module__ = module.__name__  # as FastDeploy's own; the plug-in passes others by
        setattr(module, op.__name__, op)
    refuse_others(module)


def refuse_others(module):
    """Every other name of the module is an op that raises when it is called."""

    def other(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def op(*args, **kwargs):
            raise RuntimeError(f"{name} needs a GPU; the stand-in has the message ops only")

        op.__name__, op.__module__ = name, module.__name__
        return op

    module.__getattr__ = other


def save_output(x, not_need_stop, preempted_idx, rank_id, save_each_rank):
    """FastDeploy's op of this name."""
    tokens = _numbers(x).reshape(-1)
    counts = _codes(tokens, preempted_idx)
    _send("plain", counts, tokens[counts == 1].reshape(-1, 1), None, None, not_need_stop)


def save_output_topk(x, topk_ids, scores, ranks, not_need_stop, preempted_idx, rank_id):
    """FastDeploy's op of this name."""
    tokens, ids = _numbers(x).reshape(-1), _numbers(topk_ids).copy()
    counts = _codes(tokens, preempted_idx)
    live = counts == 1
    ids[:, 0] = tokens
    _send("topk", counts, ids[live], _numbers(scores)[live], _numbers(ranks).reshape(-1)[live], not_need_stop)


def speculate_save_output(
    tokens, accepted, not_need_stop, seq_lens, prompt_lens, preempted_idx, rank_id, every_rank, skip_prefill
):
    """FastDeploy's op of this name."""
    tokens = _numbers(tokens)
    counts = _numbers(accepted).reshape(-1).astype(np.int32)
    if skip_prefill:
        counts = np.where(_numbers(seq_lens).reshape(-1) < _numbers(prompt_lens).reshape(-1), 0, counts)
    counts = np.where(_numbers(preempted_idx).reshape(-1)[: len(counts)] == 1, PREEMPTED, counts)
    ids = np.concatenate([row[: max(n, 0)] for row, n in zip(tokens, counts, strict=True)])
    _send("spec", counts, ids.reshape(-1, 1), None, None, not_need_stop)


def speculate_save_output_topk(
    tokens, topk_ids, scores, ranks, token_num, offsets, not_need_stop, seq_lens, prompt_lens, *rest
):
    """FastDeploy's op of this name, and the call without ``preempted_idx`` that its draft model makes."""
    preempted_idx = rest[0] if len(rest) == 4 else None
    flag = rest[-3]
    tokens, ids = _numbers(tokens), _numbers(topk_ids)
    starts = _numbers(offsets).reshape(-1)
    counts = _numbers(token_num).reshape(-1).astype(np.int32)
    counts = np.where(_numbers(seq_lens).reshape(-1) < _numbers(prompt_lens).reshape(-1), 0, counts)
    if preempted_idx is not None:
        counts = np.where(_numbers(preempted_idx).reshape(-1)[: len(counts)] == 1, PREEMPTED, counts)
    rows = [np.arange(starts[i], starts[i] + n) for i, n in enumerate(counts) if n > 0]
    rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    ids = ids[rows].copy()
    if len(rows):
        ids[:, 0] = np.concatenate([tokens[i, :n] for i, n in enumerate(counts) if n > 0])
    _send(
        "spec_topk",
        counts,
        ids,
        _numbers(scores)[rows],
        _numbers(ranks).reshape(-1)[rows],
        not_need_stop,
        flag,
    )


def mtp_save_first_token(
    x, not_need_stop, seq_lens, prompt_lens, step_idx, rank_id, every_rank, skip_prefill
):
    """FastDeploy's op of this name: a prefill node's first token, and one draft token."""
    tokens, first = _numbers(x), _numbers(step_idx).reshape(-1) == 1
    if skip_prefill:
        first &= _numbers(seq_lens).reshape(-1) >= _numbers(prompt_lens).reshape(-1)
    counts = np.where(first, 2, 0).astype(np.int32)
    _send("spec", counts, tokens[first, :2].reshape(-1, 1), None, None, not_need_stop)


def mtp_save_first_token_with_topk(
    tokens, topk_ids, scores, ranks, token_num, offsets, not_need_stop, seq_lens, prompt_lens, preempted_idx,
    flag, rank_id, every_rank,
):  # fmt: skip
    """FastDeploy's op of this name: the draft token has no log-probabilities."""
    tokens, ids = _numbers(tokens), _numbers(topk_ids)
    counts, starts = _numbers(token_num).reshape(-1).astype(np.int32), _numbers(offsets).reshape(-1)
    counts = np.where(counts > 0, counts + 1, counts)
    counts = np.where(_numbers(seq_lens).reshape(-1) < _numbers(prompt_lens).reshape(-1), 0, counts)
    counts = np.where(_numbers(preempted_idx).reshape(-1)[: len(counts)] == 1, PREEMPTED, counts)
    wide, values, places = [], [], []
    for i in np.flatnonzero(counts > 0):
        for j, token in enumerate(tokens[i, : counts[i]]):
            row = ids[starts[i]] if j == 0 else np.zeros(ids.shape[1], ids.dtype)
            wide.append([token, *row[1:]])
            values.append(_numbers(scores)[starts[i]] if j == 0 else np.zeros(ids.shape[1], np.float32))
            places.append(_numbers(ranks).reshape(-1)[starts[i]] if j == 0 else 0)
    _send(
        "spec_topk", counts, np.array(wide, np.int64).reshape(-1, ids.shape[1]),
        np.array(values, np.float32).reshape(-1, ids.shape[1]), np.array(places, np.int64),
        not_need_stop, flag,
    )  # fmt: skip


def _numbers(tensor):
    return tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor)


def _codes(tokens, preempted_idx):
    """1 for a token, or the negative code in its place."""
    preempted = _numbers(preempted_idx).reshape(-1)[: len(tokens)] == 1
    return np.where(preempted, PREEMPTED, np.where(tokens < 0, tokens, 1)).astype(np.int32)


_queues = {}


def _send(channel, counts, ids, scores, ranks, not_need_stop, flag=3):
    """One message of the channel's full size."""
    import sysv_ipc

    from fd_postproc import queues
    from fd_postproc._core import Step, encode, payload_size

    dialect = os.environ["FD_SERVICE_DIALECT"]
    if not ids.shape[1]:
        raise ValueError("a step needs a column")
    goes_on = bool(_numbers(not_need_stop).reshape(-1)[0])
    words = {"flag": flag, "stop_flag": 1 if goes_on else -1, "as_recorded": True}
    step = Step.from_arrays(channel, counts, ids, scores, ranks, **words)
    payload = encode(step, dialect).ljust(payload_size(channel), b"\0")
    if channel not in _queues:
        size = payload_size("spec_topk")
        key = queues.locate(channel)
        _queues[channel] = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, mode=0o666, max_message_size=size)
    try:
        _queues[channel].send(payload)
    except (OSError, ValueError, sysv_ipc.Error):
        print("full msg buffer", flush=True)
