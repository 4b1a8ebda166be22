"""A worker after sampling: what its requests have to send, and the objects that the dispatchers are given."""

import threading
import time
from types import SimpleNamespace

import numpy as np

import fd_postproc as fp
from fd_postproc import ops


def collect(channel, act, expected=1):
    """The steps that a receiver gets while `act` sends; a small queue may not hold them all."""
    steps = []
    failed = threading.Event()
    deadline = time.monotonic() + 30

    def receive():
        with fp.Receiver(channel) as receiver:
            while len(steps) < expected and not failed.is_set() and time.monotonic() < deadline:
                steps.extend(step for step in [receiver.receive(0.1)] if step is not None)
            assert receiver.receive(0) is None

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        act()
    except BaseException:
        failed.set()
        raise
    finally:
        thread.join(40)
    assert len(steps) == expected
    return steps


class Requests:
    """What each slot's request has to send.

    Attributes
    ----------
    counts : int32 (batch,)
        Tokens, or codes.
    ids, scores : (batch, 7, cols)
    ranks : (batch, 7)
    chunked, preempted : bool (batch,)
    """

    def __init__(self, rng, batch, cols, most, plain=True):
        self.batch, self.cols = batch, cols
        self.counts = rng.integers(0, most + 1, batch, dtype=np.int32)
        self.ids = rng.integers(0, 1 << 31, (batch, 7, cols))
        self.scores = -rng.random((batch, 7, cols), dtype=np.float32)
        self.ranks = rng.integers(1, 1 << 31, (batch, 7))
        self.chunked = np.zeros(batch, bool)
        self.preempted = np.zeros(batch, bool)
        if not plain:
            code = rng.random(batch) < 0.15
            self.counts[code] = rng.choice([-1, -3, -9], int(code.sum()))
            self.chunked = rng.random(batch) < 0.2
            self.preempted = rng.random(batch) < 0.2

    def live(self, slot, skip=True):
        if self.preempted[slot]:
            return -9
        return 0 if skip and self.chunked[slot] else int(self.counts[slot])

    def check(self, step, skip=True, extra=0):
        """The received step says this, and with `extra` one token without logprobs more."""
        live = [self.live(slot, skip) for slot in range(self.batch)]
        assert step.counts == [n + extra if n > 0 else n for n in live]
        ids, scores, ranks = step.tolists()
        for slot in range(self.batch):
            n = max(live[slot], 0)
            assert [row[0] for row in ids[slot]] == self.ids[slot, : n + (extra if n else 0), 0].tolist()
            if scores is None:
                continue
            cols, scored = self.cols, 1 if extra and n else n
            for j in range(scored):
                assert ids[slot][j][:cols] == self.ids[slot, j].tolist()
                assert scores[slot][j][:cols] == self.scores[slot, j].tolist()
                assert ranks[slot][j] == self.ranks[slot, j]
                assert ids[slot][j][cols:] == [-1] * (step.cols - cols)
            for j in range(scored, len(ids[slot])):
                assert ids[slot][j][1:] == [0] * (step.cols - 1)
                assert scores[slot][j] == [0.0] * step.cols
                assert ranks[slot][j] == 0
        assert step.cols == (1 if scores is None else 21 if step.dialect == "legacy" else self.cols)


class Worker:
    """The objects that the dispatchers are given: row i of every tensor is request order[i]."""

    def __init__(self, requests, order=None, *, logprobs=True, tensor=lambda array: array, mp_rank=0, pad=0):
        r = requests
        order = np.arange(r.batch) if order is None else np.asarray(order, np.intp)
        self.map = {row: int(slot) for row, slot in enumerate(order)}
        self.tensor = tensor
        used = np.maximum(r.counts[order], 0)
        offsets = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)

        def ragged(array):
            rows = [array[slot, :n] for slot, n in zip(order, used, strict=True)]
            rows.append(
                np.zeros_like(array[0, :1]) if r.batch else np.zeros((1, *array.shape[2:]), array.dtype)
            )
            return tensor(np.concatenate(rows))

        def rows(array):
            behind = np.full((pad, *array.shape[1:]), 77, array.dtype)  # as in buffers for more requests
            return tensor(np.concatenate([array[order], behind]) if pad else array[order])

        prompts = np.full((r.batch, 1), 9)
        lengths = {
            "seq_lens_decoder": rows(np.where(r.chunked[:, None], 4, 12).astype(np.int32)),
            "prompt_lens": rows(prompts),
        }
        tokens = tensor(np.ascontiguousarray(r.ids[order, :, 0]))
        self.preempted = rows(r.preempted.astype(np.int32)[:, None])
        self.sampler = SimpleNamespace(
            sampled_token_ids=tokens,
            logprobs_tensors=SimpleNamespace(
                logprob_token_ids=ragged(r.ids),
                logprobs=ragged(r.scores),
                selected_token_ranks=ragged(r.ranks),
            )
            if logprobs
            else None,
            cu_batch_token_offset=tensor(offsets),
        )
        self.model = SimpleNamespace(
            not_need_stop=tensor(np.array([True])),
            mp_rank=mp_rank,
            index_to_batch_id=self.map,
            enable_pd_reorder=True,
        )
        self.share = {
            "sampled_token_ids": tokens,
            "accept_tokens_cpu": tokens,
            "accept_num_cpu": tensor(r.counts[order]),
            "last_preempted_idx": self.preempted,
            **{f"{name}_cpu": value for name, value in lengths.items()},
        }
        self.proposer = {
            "base_model_draft_tokens": tokens,
            "batch_token_num": rows(r.counts),
            "step_idx": rows((r.counts[:, None] > 0).astype(np.int64)),
            "not_need_stop": tensor(np.array([False])),
            **lengths,
        }

    def send(self, proposer=None, *, local_rank=0, tensor_parallel_rank=0, save_each_rank=False, **keywords):
        ops.save_output_speculate(
            self.sampler,
            self.model,
            self.share,
            proposer,
            local_rank,
            tensor_parallel_rank,
            save_each_rank,
            **keywords,
        )

    def send_first(self, **keywords):
        self.send(self.proposer, is_mtp_prefill=True, **keywords)

    def send_draft(self, **keywords):
        self.send(self.proposer, message_flag=4, **keywords)

    def told(self):
        """Whether the engine knows who was preempted: the marks are gone."""
        marks = self.preempted if isinstance(self.preempted, np.ndarray) else self.preempted.numpy()
        return not marks.any()


class Plain(Worker):
    """A worker without speculation: one token, and one logprob row, per request."""

    def __init__(self, requests, order=None, *, logprobs=True, tensor=lambda array: array, mp_rank=0):
        super().__init__(requests, order, logprobs=logprobs, tensor=tensor, mp_rank=mp_rank)
        r, order = requests, list(self.map.values())
        tokens = np.where(r.counts > 0, r.ids[:, 0, 0], np.minimum(r.counts, -1))
        self.share["sampled_token_ids"] = self.sampler.sampled_token_ids = tensor(tokens[order][:, None])
        if logprobs:
            self.sampler.logprobs_tensors = SimpleNamespace(
                logprob_token_ids=tensor(np.ascontiguousarray(r.ids[order, 0])),
                logprobs=tensor(np.ascontiguousarray(r.scores[order, 0])),
                selected_token_ranks=tensor(np.ascontiguousarray(r.ranks[order, 0])),
            )

    def send(self, **keywords):
        ops.save_output_normal(self.model, self.sampler, self.share, **keywords)


def one_token_each(requests):
    """Plain channels know no count of 0."""
    requests.counts = np.where(requests.counts > 0, 1, np.minimum(requests.counts, -1)).astype(np.int32)
    requests.chunked[:] = False
    return requests


KINDS = {
    "plain": lambda r, *a, **k: Plain(one_token_each(r), *a, logprobs=False, **k),
    "topk": lambda r, *a, **k: Plain(one_token_each(r), *a, **k),
    "spec": lambda r, *a, **k: Worker(r, *a, logprobs=False, **k),
    "spec_topk": Worker,
}
