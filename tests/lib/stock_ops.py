"""FastDeploy's own save and get ops as its packed builds have them, and its engine around them.

Full-size messages of type 1 are sent whatever they hold, a failed send is one printed line; the get ops
believe every header and know no compact frame.  An independent library moves the bytes.
"""

import time
from types import SimpleNamespace

import numpy as np
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import payload_size
from tests import reference
from tests.lib.quiet import imported
from tests.lib.save_cases import CHANNELS


def queue_of(channel):
    """The channel's queue, made as FastDeploy's ops make it."""
    return sysv_ipc.MessageQueue(
        queues.locate(channel), sysv_ipc.IPC_CREAT, mode=0o666, max_message_size=payload_size(channel)
    )


def save_op(name):
    """FastDeploy's save op of this name."""

    def save(*arguments):
        saved = reference.save(name, *(_plain(argument) for argument in arguments))
        if saved is not None:
            size = payload_size(CHANNELS[name])
            try:
                queue_of(CHANNELS[name]).send(saved.payload.ljust(size, b"\0"))
            except (OSError, ValueError):
                print("full msg buffer")

    save.__name__ = name
    return save


def _plain(argument):
    return argument.numpy() if hasattr(argument, "numpy") else argument


SAVE_OPS = {name: save_op(name) for name in CHANNELS}


class Nothing(Exception):
    """No message came."""


def _payload(channel, patience):
    """The next message, whatever its type, in a buffer of the full size."""
    deadline = time.monotonic() + patience
    while True:
        try:
            message, _ = queue_of(channel).receive(block=False)
        except sysv_ipc.BusyError:
            if time.monotonic() > deadline:
                raise Nothing from None
            time.sleep(0.002)
        else:
            return message.ljust(payload_size(channel), b"\0")


def _write(tensors, arrays):
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.set_value(array.reshape(tensor.shape))


class GetOps:
    """FastDeploy's get ops.  For a test they wait `patience` seconds and no longer."""

    def __init__(self, patience):
        self.patience = patience

    def get_output(self, x, rank, wait):
        words = np.frombuffer(_payload("plain", self.patience), np.int32)
        out = x.numpy().reshape(-1)
        out[: 2 + words[1]] = words[: 2 + words[1]]
        _write([x], [out])

    def get_output_topk(self, x, scores, ranks, k, rank, wait):
        payload = _payload("topk", self.patience)
        words = np.frombuffer(payload, np.int32)
        batch, cols = words[1] & 0xFFFF, words[1] >> 16
        out, out_scores, out_ranks = (tensor.numpy().reshape(-1) for tensor in (x, scores, ranks))
        used = batch * cols
        out[:2], out[2 : 2 + used] = words[:2], words[2 : 2 + used]
        out_scores[:used] = np.frombuffer(payload, np.float32)[43016 // 4 :][:used]
        out_ranks[:batch] = words[86024 // 4 :][:batch]
        _write((x, scores, ranks), (out, out_scores, out_ranks))

    def speculate_get_output(self, x, rank, wait, every_rank):
        x.set_value(np.frombuffer(_payload("spec", self.patience), np.int32).astype(np.int64))

    def speculate_get_output_topk(self, x, scores, ranks, k, rank, wait):
        payload = _payload("spec_topk", self.patience)
        words, floats = np.frombuffer(payload, np.int32), np.frombuffer(payload, np.float32)
        out, out_scores, out_ranks = (tensor.numpy().reshape(-1) for tensor in (x, scores, ranks))
        batch, cols = words[2], words[1] >> 8
        out[:3], out[3 : 3 + batch] = words[:3], words[3 : 3 + batch]
        for i in range(batch):
            slot = (2060 + 1032 * i) // 4
            for j in range(words[3 + i]):
                row = 126 * i + 21 * j
                out[515 + row : 515 + row + cols] = words[slot + 21 * j :][:cols]
                out_scores[row : row + cols] = floats[slot + 126 + 21 * j :][:cols]
                out_ranks[6 * i + j] = words[slot + 252 + j]
        _write((x, scores, ranks), (out, out_scores, out_ranks))


def receive(double, channel, patience=10):
    """One step as FastDeploy's engine gets it: its buffers, its receive loop, its decoding."""
    cfg = double.config.FDConfig()
    cfg.model_config.enable_logprob = channel.endswith("topk")
    cfg.speculative_config.method = "mtp" if channel.startswith("spec") else None
    processor = imported("fastdeploy.output.token_processor").TokenProcessor(cfg, None, None, None)
    try:
        while not processor._receive(GetOps(patience), 0):
            pass
        return _step(channel, processor._decode())
    finally:
        processor._finalizer()


def _step(channel, received):
    """As a Step, as far as the tests look."""
    batch = int(received.batch)
    if channel == "plain":
        tokens = received.tokens.reshape(-1).tolist()
        counts = [1 if token >= 0 else token for token in tokens]
        ids = [[[token]] if token >= 0 else [] for token in tokens]
        return SimpleNamespace(
            channel=channel, dialect="packed", cols=1, counts=counts, tolists=lambda: (ids, None, None)
        )
    if channel == "topk":
        counts = [1 if row[0] >= 0 else row[0] for row in received.tokens]
        live = [n == 1 for n in counts]
        ids = [[row] if n else [] for row, n in zip(received.tokens, live, strict=True)]
        scores = [[row] if n else [] for row, n in zip(received.scores, live, strict=True)]
        ranks = [[rank] if n else [] for rank, n in zip(received.ranks, live, strict=True)]
    elif channel == "spec":
        counts = [int(n) for n in received.counts]
        rows = [received.tokens[258 + 6 * i :][: max(counts[i], 0)].tolist() for i in range(batch)]
        ids, scores, ranks = [[[token] for token in row] for row in rows], None, None
    else:
        counts = received.counts
        ids, scores, ranks = (
            [part[i][: max(counts[i], 0)] for i in range(batch)]
            for part in (received.tokens, received.scores, received.ranks)
        )
    cols = (
        len(ids[0][0]) if any(ids) and ids[0] else max((len(row) for rows in ids for row in rows), default=1)
    )
    return SimpleNamespace(
        channel=channel, dialect="packed", cols=cols, counts=counts, tolists=lambda: (ids, scores, ranks)
    )


def receive_ours(channel, patience=10):
    """One step as our Receiver gets it."""
    with fp.Receiver(channel) as receiver:
        step = receiver.receive(patience)
    if step is None:
        raise Nothing
    return step
