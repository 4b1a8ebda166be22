"""The plug-in's receive loop on a real queue: what goes wrong there, and what waits there."""

import os
import threading
import time
from types import SimpleNamespace

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.ops.log_throttle import Backoff
from tests.lib.fakes import Clock
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework


def told(rig):
    return [[result.outputs.token_ids for result in results] for results in rig.sink.puts]


# ---- Faults ------------------------------------------------------------------------------------------------


def test_a_queue_that_is_removed_is_made_again(started, log):
    rig = started()
    first = rig.processor.parts.queue.receiver
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()
    until(lambda: rig.processor.parts.queue.receiver not in (first, None))
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.sink.puts)
    assert told(rig) == [[[11], [12]]]
    assert "a new queue is made" in log.text
    assert rig.processor.healthy()


def test_malformed_messages_by_the_thousand_are_a_few_lines(started, log):
    """The log's clock stands still."""
    rig, queue = started(), sysv_ipc.MessageQueue(queues.locate("plain"))
    rig.processor.parts.journal.complaints._clock = Clock().monotonic
    for _ in range(3000):
        queue.send(b"too short")
        queue.send(bytes(8), type=9)
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.sink.puts)
    assert rig.processor.counters.malformed == 6000
    assert len(log.records) < 20
    assert log.text.count("a message was refused") == 2  # one of each kind
    assert f"the last to write to queue msqid:{queue.id} was process {os.getpid()} (" in log.text


def test_a_queue_that_is_removed_again_and_again_is_waited_for(started, log, monkeypatch):
    """By the clock of the pauses and of the log a round takes no time; the watch over readers sleeps, too."""
    rig, pauses, clock = started(), [], Clock()

    def sleep(seconds):
        own = threading.current_thread() is rig.processor.worker
        pauses.append(seconds) if own else time.sleep(seconds)

    rig.processor.parts.queue.removals = Backoff(clock=clock.monotonic)
    rig.processor.parts.journal.complaints._clock = clock.monotonic
    module = imported("fd_postproc.fastdeploy.engine.processor.loop")
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    for n in range(1, 6):
        until(lambda: rig.processor.parts.queue.receiver is not None)
        queues.remove_queue(rig.processor.parts.queue.receiver.msqid)  # by the kernel at once
        until(lambda n=n: len(pauses) == n)
    assert [round(pause, 2) for pause in pauses] == [0.0, 0.01, 0.02, 0.04, 0.08]
    assert log.text.count("a new queue is made") == 1


@each("error", [RuntimeError, SystemExit])
def test_an_exception_costs_one_step_and_the_loop_goes_on(error, started, log):
    rig = started()

    def fail_once(*_):
        del rig.processor.parts.steps.process
        raise error("planted by a test")

    rig.processor.parts.steps.process = fail_once
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.lost_steps)
    assert rig.processor.healthy()
    rig.send({0: [21], 1: [22]})
    until(lambda: rig.sink.puts)
    assert told(rig) == [[[21], [22]]]
    assert f"a step was lost: {error.__name__}: planted by a test" in log.text
    assert rig.processor.healthy()


def test_the_queues_number_may_come_after_construction(ops_queue, rig_of, monkeypatch):
    """As in FastDeploy's architecture to come."""
    number = os.environ["INFERENCE_MSG_QUEUE_ID"]
    monkeypatch.delenv("INFERENCE_MSG_QUEUE_ID")
    rig = rig_of("spec", ["a"])
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", number)
    assert ops_queue.open("spec") is None
    rig.start()
    rig.send({0: [11, 12]}, dialect="legacy")
    until(lambda: rig.sink.puts)
    assert told(rig) == [[[11, 12]]]


def test_ops_that_the_start_could_not_ask_for_their_keys_are_asked_before_a_queue_is_made(ops_queue, rig_of):
    queue, answers = rig_of("plain").processor.parts.queue, iter(["they make another key"] * 2 + [""])
    queue.ask_for_keys = lambda: next(answers)
    for _ in range(2):
        with pytest.raises(fp.QueueError):
            queue.next(0)
        assert queue.receiver is None
    for _ in range(2):  # asked no more once the answer is known, also where the queue is made again
        assert queue.next(0) is None
        queue.receiver.remove()
        queue.attendance = None


def test_stopping_while_a_queue_is_made_ends_the_loop(ops_queue, rig_of, monkeypatch):
    module = imported("fd_postproc.fastdeploy.engine.processor.queue_source")
    real = module.Receiver

    def stopped_meanwhile(*arguments, **named):
        rig.processor.stop(0)
        return real(*arguments, **named)

    monkeypatch.setattr(module, "Receiver", stopped_meanwhile)
    rig = rig_of("plain", ["a"])
    rig.processor.run()
    rig.processor.worker.join(20)
    assert not rig.processor.worker.is_alive()
    assert ops_queue.open("plain") is None


def test_a_queue_that_cannot_be_opened_is_tried_again(started, log, monkeypatch):
    """Once a second, with a line of the log each time: the cause may go away."""
    module = imported("fd_postproc.fastdeploy.engine.processor.queue_source")
    real, pauses = module.Receiver, []

    def refused(*arguments, **named):
        if len(pauses) < 2:
            raise fp.QueuePermission("planted by a test")
        return real(*arguments, **named)

    monkeypatch.setattr(module, "Receiver", refused)
    loop = imported("fd_postproc.fastdeploy.engine.processor.loop")
    monkeypatch.setattr(loop, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    started("plain")
    assert pauses[:2] == [1.0, 1.0]
    assert log.text.count("planted by a test") == 2


# ---- What waits --------------------------------------------------------------------------------------------


def test_a_step_does_not_wait_for_its_draft_for_ever(started, monkeypatch, log):
    monkeypatch.setattr(imported("fd_postproc.fastdeploy.engine.processor.loop"), "DRAFT_WAIT_S", 0.05)
    rig = started("spec_topk", enable_draft_logprob=True)
    rig.send({0: [11, 12], 1: [13]})
    until(lambda: rig.sink.puts)
    assert told(rig) == [[[11, 12], [13]]]
    assert [result.outputs.draft_top_logprobs for result in rig.sink.puts[0]] == [None, None]
    until(lambda: rig.processor.counters.as_dict()["unpaired_drafts"] == 2)
    until(lambda: "no draft message came" in log.text)
    rig.send({0: [14], 1: [15]}, flag=4)
    rig.send({0: [21], 1: [22]})
    rig.send({0: [23], 1: [24]}, flag=4)
    until(lambda: len(rig.sink.puts) == 2)
    assert told(rig)[1] == [[21], [22]]
    assert [r.outputs.draft_top_logprobs.logprob_token_ids[0][0] for r in rig.sink.puts[1]] == [23, 24]
    assert rig.processor.counters.unpaired_drafts == 2  # of those that were paired: none


def test_a_slot_that_a_decode_node_has_reserved_costs_no_draft(started):
    """It has no task until its cache comes; FastDeploy's own raises, and the step's tokens are lost."""
    rig = started("spec_topk", names=("a", "b", "c"), enable_draft_logprob=True)
    rig.manager.tasks_list[1] = None
    assert not rig.manager.stop_flags[1]
    rig.send({0: [11, 12], 1: [], 2: [13]})
    rig.send({0: [14], 1: [15], 2: [16]}, flag=4)
    until(lambda: rig.sink.puts)
    assert told(rig) == [[[11, 12], [13]]]
    assert [r.outputs.draft_top_logprobs.logprob_token_ids[0][0] for r in rig.sink.puts[0]] == [14, 16]


def test_steps_come_while_a_transfer_waits_also_after_a_refused_message(started):
    def prepare(rig):
        rig.requests["a"].disaggregate_info = {"role": "prefill"}

    rig = started("spec", prepare=prepare, splitwise_role="prefill")
    rig.send({0: [11, 12], 1: [13]})
    until(lambda: rig.processor.parts.transfers.waiting)
    for refused in (1, 2):
        sysv_ipc.MessageQueue(queues.locate("spec")).send(b"too short")
        until(lambda refused=refused: rig.processor.counters.malformed == refused)
        rig.send({1: [20 + refused]})
        until(lambda refused=refused: told(rig)[-1:] == [[[20 + refused]]])
    assert rig.processor.parts.transfers.waiting


@each("seconds", [-3600, 60, 1625])
def test_a_clock_that_is_set_changes_no_token_and_no_answer(seconds, started, monkeypatch):
    now = time.time
    rig = started("spec_topk", enable_draft_logprob=True)
    for number in range(3):
        rig.send({0: [11, 12], 1: [13]})
        until(lambda: rig.processor._batch_result_buffer)
        monkeypatch.setattr(time, "time", lambda number=number: now() + (1 - number % 2) * seconds)
        sysv_ipc.MessageQueue(queues.locate("spec_topk")).send(b"too short")  # the loop looks at its clock
        until(lambda number=number: rig.processor.counters.malformed > number)
        rig.send({0: [14], 1: [15]}, flag=4)
        until(lambda number=number: len(rig.sink.puts) > number)
        assert rig.processor.parts.health.health() is None
    assert told(rig) == [[[11, 12], [13]]] * 3
    assert all(one.outputs.draft_top_logprobs for results in rig.sink.puts for one in results)
    counters = rig.processor.counters
    assert (counters.stale, counters.lost_steps, counters.failed_requests) == (0, 0, 0)


# ---- Ranks -------------------------------------------------------------------------------------------------


@each("channel, expert_parallel", [("plain", False), ("topk", True), ("spec", True), ("spec_topk", False)])
def test_a_rank_above_0_receives(channel, expert_parallel, started):
    """FastDeploy's ops ignore the rank, or are told that all of them read; the queue is the rank's own."""

    def prepare(rig):
        rig.processor.cfg.parallel_config.local_data_parallel_id = 1

    mode = {"data_parallel_size": 2, "enable_expert_parallel": expert_parallel}
    rig = started(channel, prepare=prepare, **mode)
    rig.send({0: [11], 1: [12]}, {0: [21], 1: [22]})
    until(lambda: len(rig.sink.puts) == 2)
    assert told(rig) == [[[11], [12]], [[21], [22]]]
