"""The dispatchers: what a worker has after sampling comes out of the queue at its request."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops import slots
from tests.lib.rows import each
from tests.lib.sampled_steps import KINDS, Requests, Worker, collect
from tests.lib.search import examples

KIND = each("channel", KINDS)
LIMITS = {"packed": "raised_limits", "legacy": "raised_limits", "compact": "default_limits"}


@pytest.fixture(params=LIMITS)
def wire(request, monkeypatch):
    """Each dialect, under the kernel limits that it needs: a function that collects what is sent."""
    request.getfixturevalue(LIMITS[request.param])
    request.getfixturevalue("ops_queue")
    monkeypatch.setenv("FD_POSTPROC_DIALECT", request.param)
    monkeypatch.delenv("ENABLE_V1_KVCACHE_SCHEDULER", raising=False)
    return collect


@KIND
def test_tensors_of_every_framework(channel, default_limits, ops_queue, monkeypatch, framework):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    for seed, order in enumerate([None, [3, 0, 4, 1, 2]]):
        requests = Requests(np.random.default_rng(seed), 5, 3, 6, plain=False)
        worker = KINDS[channel](requests, order, tensor=framework.tensor)
        worker.model.not_need_stop[0] = bool(seed)
        if channel.endswith("topk") and seed:
            del worker.share["sampled_token_ids"]  # an engine whose share inputs have none
        [step] = collect(channel, worker.send)
        requests.check(step)
        assert worker.told()
        assert step.stop_flag == (1 if seed else -1)
    requests = Requests(np.random.default_rng(1), 5, 1, 1)
    requests.counts[:2] = 1, 0
    requests.chunked[1:3] = True
    worker = Worker(requests, order, logprobs=False, tensor=framework.tensor)
    for skip in True, False:
        [step] = collect("spec", lambda skip=skip: worker.send_first(skip_chunk_prefill=skip))
        requests.check(step, skip=skip, extra=1)
        assert step.stop_flag == -1  # the proposer's


@KIND
def test_every_order(channel, wire):
    """Random permutations, codes, preempted and chunked requests."""

    @examples(6)
    @given(data=st.data(), batch=st.integers(0, 9), cols=st.integers(1, 21), seed=st.integers(0, 1 << 32))
    def check(data, batch, cols, seed):
        requests = Requests(np.random.default_rng(seed), batch, cols, 6, plain=False)
        order = data.draw(st.permutations(range(batch)))
        worker = KINDS[channel](requests, order)
        [step] = wire(channel, worker.send)
        requests.check(step)
        assert worker.told()

    check()


def test_every_order_of_first_tokens_and_drafts(wire):
    @examples(6)
    @given(data=st.data(), batch=st.integers(0, 9), cols=st.integers(1, 21), seed=st.integers(0, 1 << 32))
    def check(data, batch, cols, seed):
        rng = np.random.default_rng(seed)
        pad = data.draw(st.integers(0, 2))
        order = data.draw(st.permutations(range(batch)))
        first, draft = (Requests(rng, batch, cols, most, plain=False) for most in (5, 6))
        worker = Worker(first, order)
        [step] = wire("spec_topk", worker.send_first)
        first.check(step, extra=1)
        assert (step.flag, worker.told()) == (3, True)
        worker = Worker(draft, order, pad=pad)
        [step] = wire("spec_topk", worker.send_draft)
        draft.check(step)
        assert step.flag == 4
        assert step.stop_flag == -1  # the proposer's
        assert worker.told() == (not draft.preempted.any() and pad == 0)

    check()


@each("setting, skip", [(None, True), ("1", True), ("0", False), (" 0 ", False)])
def test_chunked_prefill(setting, skip, wire, monkeypatch):
    if setting is not None:
        monkeypatch.setenv("ENABLE_V1_KVCACHE_SCHEDULER", setting)
    requests = Requests(np.random.default_rng(1), 4, 2, 6)
    requests.counts[:] = 1, 2, 3, 4
    requests.chunked[:] = [0, 1, 0, 1]
    worker = Worker(requests, [1, 0, 3, 2], logprobs=False)
    [step] = wire("spec", worker.send)
    requests.check(step, skip=skip)
    [step] = wire("spec", lambda: worker.send(skip_chunk_prefill=not skip))
    requests.check(step, skip=not skip)
    [step] = wire("spec_topk", lambda: Worker(requests).send(skip_chunk_prefill=False))
    requests.check(step)  # with logprobs a chunk never has tokens


@KIND
def test_only_rank_0_sends(channel, wire, ops_queue):
    requests = Requests(np.random.default_rng(1), 3, 2, 6)
    requests.preempted[1] = True
    worker = KINDS[channel](requests, mp_rank=1)
    worker.send(save_each_rank=True)
    assert ops_queue.waiting() == 0
    assert worker.told()


@each("logprobs", [False, True])
@each(
    "local, tensor_parallel, each, sends",
    [
        (0, 0, False, True),
        (1, 1, True, False),
        (0, 1, False, False),
        (2, 0, True, True),
        (2, 0, False, False),
    ],
)
def test_who_sends_first_tokens(logprobs, local, tensor_parallel, each, sends, wire, ops_queue):
    requests = Requests(np.random.default_rng(1), 3, 2, 1)
    requests.preempted[1] = True
    worker = Worker(requests, logprobs=logprobs, mp_rank=local)
    ranks = {"local_rank": local, "tensor_parallel_rank": tensor_parallel, "save_each_rank": each}
    wire("spec_topk" if logprobs else "spec", lambda: worker.send_first(**ranks), int(sends))
    assert ops_queue.waiting() == 0
    assert worker.told()


def test_who_sends_drafts(wire, ops_queue):
    requests = Requests(np.random.default_rng(1), 3, 2, 6)
    Worker(requests).send_draft(tensor_parallel_rank=1)
    Worker(requests).send(message_flag=4, tensor_parallel_rank=1)  # the proposer is rank 0's
    Worker(requests, mp_rank=1).send_draft(save_each_rank=True)
    Worker(requests, logprobs=False).send_draft()  # an engine has no use for bare draft tokens
    assert ops_queue.waiting() == 0


class Untouchable:
    """Proposer inputs that nobody may look at."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    __getitem__ = __contains__ = __getattribute__


@each("channel", ["spec", "spec_topk"])
def test_methods_without_a_proposer(channel, wire):
    requests = Requests(np.random.default_rng(1), 4, 2, 6, plain=False)
    for proposer in None, Untouchable():
        worker = KINDS[channel](requests, [1, 0, 3, 2])
        [step] = wire(channel, lambda worker=worker, proposer=proposer: worker.send(proposer))
        requests.check(step)


@each("keywords", [{"is_mtp_prefill": True}, {"message_flag": 4}])
def test_a_missing_proposer_is_told(keywords, ops_queue):
    worker = Worker(Requests(np.random.default_rng(1), 4, 2, 6))
    with pytest.raises(ValueError, match="proposer_share_inputs, which is None"):
        worker.send(None, **keywords)
    assert ops_queue.waiting() == 0


def test_a_proposer_with_an_order_of_its_own(wire):
    class Inputs(dict):
        index_to_batch_id = {0: 2, 1: 1, 2: 0}  # noqa: RUF012
        enable_pd_reorder = True

    requests = Requests(np.random.default_rng(1), 3, 2, 5)
    requests.counts[:] = 1
    worker = Worker(requests, [1, 2, 0])
    proposer = Inputs(Worker(requests, [2, 1, 0]).proposer)
    [step] = wire("spec_topk", lambda: worker.send(proposer, is_mtp_prefill=True))
    requests.check(step, extra=1)
    drafting = Worker(requests, [2, 1, 0])  # the sampler's rows are the proposer's
    drafting.model = worker.model
    [step] = wire("spec_topk", lambda: drafting.send(Inputs(drafting.proposer), message_flag=4))
    requests.check(step)


def refused(worker, text, ops_queue, send=None):
    with pytest.raises(ValueError, match=text):
        (send or worker.send)()
    assert ops_queue.waiting() == 0
    assert not worker.told()


@pytest.fixture
def marked():
    """Three requests, one of them preempted."""
    requests = Requests(np.random.default_rng(1), 3, 2, 6)
    requests.counts[:] = 1
    requests.preempted[2] = True
    return requests


def test_marks_stay_until_the_engine_knows(marked, default_limits, ops_queue, monkeypatch):
    """A message that does not fit the kernel's limits is not sent; sent otherwise, it says -9."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed")
    worker = KINDS["topk"](marked)
    with pytest.raises(fp.MessageTooBig):
        worker.send()
    assert not worker.told()
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    [step] = collect("topk", worker.send)
    assert step.counts == [1, 1, -9]
    assert worker.told()


def test_more_tokens_than_a_slot_holds(marked, ops_queue):
    marked.counts[1] = 7
    refused(Worker(marked), r"token_num_per_batch\[1\]: 7 tokens.*6", ops_queue)
    refused(Worker(marked, logprobs=False), r"accept_num\[1\]: 7 tokens.*6", ops_queue)
    marked.counts[1] = 6  # one token more than accepted has to fit
    worker = Worker(marked, [0, 2, 1])
    refused(worker, r"token_num_per_batch\[1\]: 7 tokens, the first.*6", ops_queue, worker.send_first)
    worker = Worker(marked, [1, 2, 0])
    worker.share["prompt_lens_cpu"] = worker.share["prompt_lens_cpu"][:2]
    refused(worker, "prompt_lens_cpu has 2 rows, but row 2 ", ops_queue)


@each(
    "moved, text",
    [
        ({0: 1, 1: 1, 2: 0}, "rows 0 and 1 both to slot 1"),
        ({0: 1, 1: 0, 2: 512}, r"index_to_batch_id\[2\] = 512 .*0 to 511"),
        ({0: 1, 1: -1, 2: 0}, r"index_to_batch_id\[1\] = -1 .*0 to 511"),
    ],
)
@KIND
def test_orders_that_would_lose_tokens(channel, moved, text, marked, ops_queue):
    worker = KINDS[channel](marked)
    worker.model.index_to_batch_id = moved
    refused(worker, text, ops_queue)


@each("name, text", [("sampling_mask", "sampling mask"), ("logz_per_batch", "renormalised")])
@each("channel", ["topk", "spec_topk"])
def test_what_is_not_carried(channel, name, text, marked, ops_queue):
    worker = KINDS[channel](marked)
    setattr(worker.sampler, name, np.zeros(3))
    refused(worker, text, ops_queue)


@KIND
def test_rows_gathered_at_the_front(channel, wire):
    """A worker may keep only running requests in front: rows 0 and 1 are slots 1 and 3."""
    requests = Requests(np.random.default_rng(1), 5, 2, 6)
    requests.counts[:] = 1, 2, 3, 4, 5
    worker = KINDS[channel](requests, [1, 3, 0, 2, 4])
    worker.model.index_to_batch_id = {0: 1, 1: 3}
    [step] = wire(channel, worker.send)
    none = -1 if channel in ("plain", "topk") else 0
    for slot in 0, 2, 4:
        requests.counts[slot] = none
    requests.check(step)


@KIND
def test_slots_beyond_the_rows(channel, wire):
    requests = Requests(np.random.default_rng(1), 2, 2, 6)
    requests.counts[:] = 2, 1
    worker = KINDS[channel](requests)
    worker.model.index_to_batch_id = {0: 4, 1: 1, 9: 0}
    [step] = wire(channel, worker.send)
    assert step.batch == 5
    none = -1 if channel in ("plain", "topk") else 0
    first = 1 if channel in ("plain", "topk") else 2
    assert step.counts == [none, 1, none, none, first]
    assert step.token_ids(4) == requests.ids[0, :first, 0].tolist()
    assert step.token_ids(1) == requests.ids[1, :1, 0].tolist()


@each("moved", [{}, {0: 0, 1: 1}, {0: 2, 1: 0, 2: 1}])
def test_nothing_is_copied_that_was_not_moved(moved):
    order = SimpleNamespace(index_to_batch_id=moved, enable_pd_reorder=False)
    tensor = np.zeros((3, 1))
    assert slots.Slots(order, 3, fp.GPU).place(tensor, "x") is tensor
    order.enable_pd_reorder = True
    assert (slots.Slots(order, 3, fp.GPU).place(tensor, "x") is tensor) == (moved.get(0, 0) == 0)


@each(
    "requested, columns",
    [([], 1), ([None, None], 1), ([0], 1), ([None, 5, 0], 6), ([20, 1], 21), ((3, None), 4)],
)
def test_columns(requested, columns):
    assert ops.num_columns(requested) == columns
    assert ops.num_columns([5], fp.Layout(128, 5, 6)) == 6
    for asked, layout, most in (21, fp.GPU, 20), (-1, fp.GPU, 20), (6, fp.Layout(128, 5, 6), 5):
        with pytest.raises(ValueError, match=rf"request 2 asked for {asked} .*0 to {most}"):
            ops.num_columns([None, 3, asked], layout)
    with pytest.raises(TypeError):
        ops.num_columns([1.5])
