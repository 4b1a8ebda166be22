"""Speculative decoding through FastDeploy's ZeroMQ socket, which FastDeploy itself refuses."""

import pickle
import queue
import threading
import time

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc._core import DRAFT, TARGET, _open_streamed
from fd_postproc.fastdeploy.stream_frames import Content, packed
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.queues import list_queues, locate
from fd_postproc.support.environment import DRAFTS, PEER
from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.sampled_steps import Requests
from tests.lib.step_replay.traces import Trace, tables, trace_names
from tests.lib.waiting import PATIENCE, until
from tests.lib.worker_side import restore_save_ops, sampled, save
from tests.reference import ReferenceStep, encode_frame

pytestmark = pytest.mark.framework

NAMES = [name for name in trace_names() if name.startswith("spec") and name != "spec_topk_h_other_flag"]
BY_HAND = [name for name in NAMES if "_h_" in name]
OFTEN = [*BY_HAND[::5], *[name for name in NAMES if name not in BY_HAND][::16]]


@tables(OFTEN, NAMES)
def test_recorded_steps_give_the_results_that_they_give_through_a_queue(names):
    """FastDeploy's own results, from its queue; or the model's, where FastDeploy loses something."""
    judge, deliver = imported("tests.lib.step_replay.judge"), imported("tests.lib.step_replay.deliver")
    cls, made = plugin_class(), []

    class Noted(cls):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            made.append(self)

    traces = [trace for trace in map(Trace.load, names) if not trace.mode["use_sampling_mask"]]
    faults = {trace.name: judge.faults(trace, Noted, deliver.through_socket) for trace in traces}
    assert {name: lines for name, lines in faults.items() if lines} == {}
    assert all(processor.counters.malformed == 0 for processor in made)


# ---- From the worker's save ops through the model runner's thread -----------------------------------


class Runner:
    """What FastDeploy's model runner has for its steps over ZeroMQ."""

    def __init__(self):
        self.async_output_queue, self.sent = queue.Queue(), queue.Queue()
        self.send = self.sent.put
        self.thread = threading.Thread(target=self._async_output_busy_loop, daemon=True)
        self.thread.start()

    def _async_output_busy_loop(self):
        while (output := self.async_output_queue.get()) is not None:
            self.send(output)

    def end(self):
        self.async_output_queue.put(None)
        self.thread.join(10)


@pytest.fixture
def runner():
    made = Runner()
    yield made
    made.end()


@pytest.fixture
def double(monkeypatch, ops_queue):
    """The double whose save ops are ours; the engine's process wants accepted tokens through the socket."""
    module = imported("tests.lib.quiet").Double()
    imported("paddle")
    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    monkeypatch.setenv(PEER.name, f"compact/1,streams/3,{DRAFTS}")
    worker.register()
    yield module
    restore_save_ops()
    preparation = module.model_executor__pre_and_post_process
    if hasattr(preparation._build_stream_transfer_data, "original"):
        preparation._build_stream_transfer_data = preparation._build_stream_transfer_data.original


def received(runner):
    """What the engine's side reads next: (Step, sender)."""
    step, sections, sender = _open_streamed(runner.sent.get(timeout=PATIENCE), True, 6)
    assert sections == {}
    return step, sender


@each("channel", ["spec", "spec_topk"])
@each("batch", [1, 300])
def test_accepted_tokens_come_as_frames(channel, batch, double, runner):
    """Counts, codes, chunks, preempted requests and log-probabilities, also beyond a queue's 256 slots."""
    seen = []
    for seed in range(3):
        requests = sampled(channel, seed, batch)
        save(double, channel, requests)
        step, sender = received(runner)
        seen.append((sender, step.seq))
        requests.check(step)
    first = seen[0]
    assert seen == [(first[0], first[1] + more) for more in range(3)]


def test_first_tokens_of_a_prefill_node(double, runner):
    requests = Requests(np.random.default_rng(3), 5, 3, 1)
    save(double, "spec", requests, is_mtp_prefill=True)
    step = received(runner)[0]
    assert step.counts == [n + 1 if n > 0 else n for n in requests.counts]


def test_draft_messages_keep_their_flag(double, runner):
    requests = sampled("spec_topk", 2)
    save(double, "spec_topk", requests)
    target = received(runner)[0]
    op = double.model_executor__ops__gpu.speculate_save_output_topk
    paddle = imported("paddle")
    ints = lambda values, dtype="int32": paddle.to_tensor(np.array(values, dtype), place="cpu")  # noqa: E731
    op(
        ints([[7, 8]], "int64"), ints([[7, 1], [8, 2]], "int64"), ints([[-0.5, -1], [-0.25, -2]], "float32"),
        ints([1, 2], "int64"), ints([2]), ints([0]), paddle.to_tensor([True]), ints([5]), ints([3], "int64"),
        4, 0, False,
    )  # fmt: skip
    draft = received(runner)[0]
    assert (target.flag, draft.flag) == (TARGET, DRAFT)
    assert draft.ids.tolist() == [[7, 1], [8, 2]]


def test_nothing_is_sent_where_no_runner_is(double):
    with pytest.raises(RuntimeError, match="0 threads of this process run _async_output_busy_loop"):
        save(double, "spec", sampled("spec"))
    assert all(queue.key != locate("spec") for queue in list_queues())


def test_a_number_that_does_not_fit_is_named(double, runner):
    requests = sampled("spec")
    requests.counts[0], requests.chunked[0], requests.preempted[0] = 9, False, False
    with pytest.raises(ValueError, match=r"accept_num\[0\]: 9 tokens"):
        save(double, "spec", requests)
    requests.counts[0] = 1
    save(double, "spec", requests)
    requests.check(received(runner)[0])


# ---- The engine's loop -----------------------------------------------


def frame_of(step, number=0):
    return encode_frame(ReferenceStep.from_step(step), sender=9, seq=number)


def envelope(frame):
    return pickle.dumps({"__meta": {"send_ts": time.perf_counter()}, "data": frame})


@pytest.fixture
def running(receiving):
    """An engine that decodes speculatively and receives from a real socket."""
    return receiving("spec", 3, num_speculative_tokens=2)


def accepted(*tokens):
    counts = [len(one) for one in tokens]
    ids = np.array([[token] for one in tokens for token in one], np.int32).reshape(-1, 1)
    return fp.Step.from_arrays("spec", counts, ids)


def test_steps_through_a_real_socket(running):
    """And what is lost on the way is counted."""
    assert DRAFTS in running.peer.split(",")
    steps = accepted([5, 6], [7], []), accepted([8], [9, 10, 11], [12]), *[accepted([5], [], [])] * 3
    for number, one in zip((0, 1, 4, 4, 3), steps, strict=True):
        running.send(envelope(frame_of(one, number)))
    until(lambda: len(running.put) == 5)
    told = [[one["outputs"]["token_ids"] for one in results] for results in running.put[:3]]
    assert told == [[[5, 6], [7]], [[8], [9, 10, 11], [12]], [[5]]]
    counted = running.processor.counters.as_dict()
    assert (counted["missing"], counted["doubled"], counted["reordered"]) == (2, 1, 1)


def test_what_is_no_such_step_is_refused(running):
    good = frame_of(accepted([5], [6], [7]))
    damaged = bytearray(good)
    damaged[-1] ^= 1  # the checksum notices
    tokens = packed(Content(3, np.array([5, 6, 7])))
    wrong = [bytes(damaged), tokens, good[:-1], bytes(80)]
    for frame in [*wrong, []]:
        running.send(envelope(frame))
    running.send(envelope(good))
    until(lambda: running.put)
    assert [one["outputs"]["token_ids"] for one in running.put[0]] == [[5], [6], [7]]
    assert running.processor.counters.malformed == len(wrong) + 1
    assert running.processor.counters.lost_steps == 0


def test_a_worker_without_the_plug_in_is_told_of(receiving, monkeypatch):
    """Its tokens go into the queue, where nobody reads."""
    monkeypatch.setattr("fd_postproc.fastdeploy.engine.processor.socket_source.UNHEARD_S", 0.05)
    running = receiving("spec", 3, num_speculative_tokens=2)
    with fp.Sender("spec") as sender:
        sender.send(accepted([5]))
    trouble = lambda: running.processor.parts.loop.trouble  # noqa: E731
    until(lambda: trouble() is not None)
    assert "1 steps lie in the System V queue" in trouble().text
    running.send(envelope(frame_of(accepted([5], [], []))))
    until(lambda: running.put)


def test_masks_and_a_socket_that_was_not_announced_are_refused(monkeypatch, rig_of):
    """As FastDeploy does: its workers send accepted tokens through the queue then."""
    processor = rig_of("spec", ["a"]).processor
    monkeypatch.delenv(PEER.name, raising=False)
    with pytest.raises(NotImplementedError, match="FD_POSTPROC_PEER lacks"):
        processor.process_sampling_results_use_zmq()
    processor.use_sampling_mask = True
    with pytest.raises(NotImplementedError, match="sampling masks with speculative decoding"):
        processor.process_sampling_results_use_zmq()
