"""`healthy`: the truth about token thread, worker and queue, within seconds, and no false alarm."""

import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import sysv_ipc

from fd_postproc import queues
from fd_postproc.fastdeploy.engine import lifecycle
from fd_postproc.fastdeploy.engine.health import liveness
from fd_postproc.flight import reading
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.reading import Event
from tests.lib.children import python
from tests.lib.nursery import with_paddle
from tests.lib.plugged import plugin_class
from tests.lib.rig import Rig
from tests.lib.waiting import until

pytestmark = pytest.mark.framework

FLOOR = 0.5


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Half a second is a silence, and who watches looks all the time."""
    monkeypatch.setenv("FD_POSTPROC_SILENCE", str(FLOOR))
    monkeypatch.setattr(plugin_class(), "watch_period", 0.05)


def gauge(reason):
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value("fd_postproc_unhealthy", {"reason": reason})


WORKER = """
import signal, sys, time
import fd_postproc as fp
paused = False
def pause(number, _):
    global paused
    paused = number == signal.SIGUSR1
signal.signal(signal.SIGUSR1, pause)
signal.signal(signal.SIGUSR2, pause)
step = fp.Step.from_arrays("plain", [1, 1], [[11], [12]])
with fp.Sender("plain") as sender:
    while True:
        while paused:
            time.sleep(0.01)
        try:
            sender.send(step)
        except fp.QueueRemoved:
            sender = fp.Sender("plain")
        time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def worker():
    """A function that starts a process which sends a token for each of two requests, again and again."""
    processes = []

    def start(pause=0.02):
        process = subprocess.Popen(python(WORKER, pause))
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def reason(rig):
    verdict = rig.processor.health()
    return verdict and verdict.reason


def decoding(rig, least=5):
    """Wait until both requests are being decoded."""
    steps = rig.processor.counters.steps + least
    until(lambda: rig.processor.counters.steps >= steps)
    until(lambda: reason(rig) is None)


# ---- What the token thread does ----------------------------------------------------------------------------


def test_healthy_before_the_start_and_while_nothing_comes(started):
    rig = Rig("plain", ["a"])
    assert rig.processor.healthy()
    rig.close()
    assert started().processor.healthy()


def test_a_dead_token_thread_is_not_healthy(started):
    rig = started()
    rig.processor.stop(60)
    assert not rig.processor.healthy()


def test_a_batch_that_takes_too_long_is_not_healthy(started, monkeypatch):
    rig = started()
    limit = rig.processor.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT
    now = time.monotonic()
    assert limit > 5
    rig.processor._in_hand_since = now - 4
    assert rig.processor.healthy()
    rig.processor._in_hand_since = now - 5
    assert not rig.processor.healthy()
    monkeypatch.setenv("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", "3")
    rig.processor._in_hand_since = now - 4
    assert not rig.processor.healthy()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_step_of_the_wall_clock_neither_hides_nor_invents_a_stuck_step(started, monkeypatch, hours):
    rig = started()
    processor, seen = rig.processor, []
    stock = processor.fd.time.time

    def look(*arguments):
        seen.append((processor.timestamp_for_alive_before_handle_batch, processor.healthy()))
        monkeypatch.setattr(processor.fd.time, "time", lambda: stock() + hours * 3600)
        seen.append((processor.timestamp_for_alive_before_handle_batch, processor.healthy()))
        processor._in_hand_since -= 5
        seen.append((processor.timestamp_for_alive_before_handle_batch, processor.healthy()))

    monkeypatch.setattr(processor, "_process_step", look)
    processor._handle(None)
    assert [healthy for _, healthy in seen] == [True, True, False]
    assert all(seen[0])  # FastDeploy's stamp is set, too
    assert processor._in_hand_since is None
    assert processor.healthy()


def test_a_worker_that_is_gone_is_not_healthy_while_requests_run(started):
    rig = started()
    code = (
        "import fd_postproc as fp\n"
        "step = fp.Step.from_arrays('plain', [1, 1], [[11], [12]])\n"
        "with fp.Sender('plain') as sender: sender.send(step)"
    )
    with_paddle(f"{code}\nprint('null')")
    until(lambda: rig.sink.puts)
    assert not rig.processor.healthy()
    for slot in range(2):
        rig.manager.tasks_list[slot] = None
    assert rig.processor.healthy()  # nobody waits for it
    rig.manager.tasks_list[0] = rig.requests["a"]
    rig.send({0: [21]})
    until(lambda: len(rig.sink.puts) == 2)
    assert rig.processor.healthy()  # another one has taken over


def test_who_sends_what_is_refused_says_nothing_about_the_worker(started):
    """A process that has ended, one byte: no reason to restart the service."""
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.sink.puts)
    rig.processor._receiver._sender_due = 0  # whoever is asked for next is asked for at once
    key = queues.locate("plain")
    code = f"import sysv_ipc; sysv_ipc.MessageQueue({key}).send(b'x')"
    with_paddle(f"{code}\nprint('null')")
    until(lambda: rig.processor.counters.malformed)
    assert rig.processor.healthy()


def test_whether_it_is_healthy_is_not_asked_of_other_queues(started, monkeypatch):
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.sink.puts)
    monkeypatch.setattr(queues, "_rows", None)  # what the kernel says of every queue
    assert rig.processor.healthy()


def test_whether_the_sender_is_there_is_asked_without_the_lock(started, monkeypatch):
    """The token thread takes it twice a step."""
    rig, asked = started(), []
    monkeypatch.setattr(type(rig.processor), "_sight", lambda self: asked.append(self.health_lock.locked()))
    monkeypatch.setattr("fd_postproc.fastdeploy.engine.health.liveness.Liveness.look", lambda *_: None)
    assert rig.processor.healthy()
    assert set(asked) == {False}


def test_a_stuck_step_is_told_and_over_when_it_is(started, log):
    rig, go_on = started(), threading.Event()
    rig.processor.stuck_after = 0.3
    real = rig.processor._process_step
    rig.processor._process_step = lambda *step: (go_on.wait(20), real(*step))
    rig.send({0: [11], 1: [12]})
    until(lambda: gauge("step") == 1)
    assert reason(rig) == "step"
    until(lambda: "unhealthy (step): the token thread has had a step in hand for" in log.text)
    recorded = [one for one in reading.read(rig.processor.recorder.path).entries if isinstance(one, Event)]
    assert any(one.kind == Kind.UNHEALTHY and one.text.startswith("step: ") for one in recorded)
    go_on.set()
    until(lambda: gauge("step") == 0)
    assert rig.processor.healthy()
    until(lambda: "healthy again, after" in log.text)


# ---- What the worker does ----------------------------------------------------------------------------------


def test_a_killed_worker_is_told_at_once_and_over_with_the_next_one(started, worker, log):
    rig, process = started(), worker()
    decoding(rig)
    until(lambda: rig.processor._receiver._last_sender == process.pid)  # asked for a few times a second
    process.kill()
    until(lambda: gauge("worker") == 1)  # nobody has waited for it: it is a zombie
    until(lambda: f"the worker's process {process.pid} is gone" in log.text)
    worker()
    until(lambda: gauge("worker") == 0)
    assert rig.processor.healthy()


def test_a_worker_that_stops_is_told_by_its_silence_and_over_when_it_goes_on(started, worker):
    rig, process = started(), worker()
    decoding(rig)
    process.send_signal(signal.SIGSTOP)
    until(lambda: gauge("stopped") == 1)
    process.send_signal(signal.SIGCONT)
    until(lambda: gauge("stopped") == 0)
    assert rig.processor.healthy()


def test_a_worker_that_lives_and_sends_nothing(started, log):
    """This process sends; it goes on, and sends no more."""
    rig = started()
    for _ in range(3):
        rig.send({0: [11], 1: [12]})
        time.sleep(0.02)
    until(lambda: rig.processor.counters.steps == 3)
    until(lambda: gauge("silent") == 1)
    until(lambda: "has sent nothing for" in log.text)
    rig.send({0: [11], 1: [12]})
    until(lambda: gauge("silent") == 0)


def test_no_worker_is_silent_while_a_step_is_in_hand(started, log):
    """Nobody reads what it sends."""
    rig, go_on = started(), threading.Event()
    for _ in range(3):
        rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 3)
    real = rig.processor._process_step
    rig.processor._process_step = lambda *step: (go_on.wait(20), real(*step))
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor._in_hand()[0] is not None)
    time.sleep(2 * FLOOR)
    assert reason(rig) is None
    go_on.set()
    until(lambda: rig.processor.counters.steps == 4)
    until(lambda: gauge("silent") == 1)


def test_a_silence_is_none_while_nothing_runs(started):
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 1)
    for slot in range(2):
        rig.manager.tasks_list[slot] = None
    time.sleep(2 * FLOOR)
    assert reason(rig) is None


def test_a_prefill_is_no_silence(started):
    """While a request waits for its first token, all others wait for its prefill."""
    rig = started()
    for _ in range(3):
        rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 3)
    rig.insert("c", 2)
    time.sleep(3 * FLOOR)
    assert reason(rig) is None
    rig.send({0: [11], 1: [12], 2: [13]})
    until(lambda: rig.processor.counters.steps == 4)
    until(lambda: gauge("silent") == 1)


def test_silence_may_be_switched_off(started, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_SILENCE", "off")
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 1)
    time.sleep(2 * FLOOR)
    assert reason(rig) is None


def test_a_removed_queue_that_the_worker_does_not_notice(started, log):
    """FastDeploy's own save ops keep the number of a queue that is gone."""
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 1)
    queues.remove_queue(rig.processor._receiver.msqid)
    until(lambda: gauge("removed") == 1)
    until(lambda: "the queue was removed" in log.text)
    rig.send({0: [11], 1: [12]})
    until(lambda: gauge("removed") == 0)


def test_a_removed_queue_that_the_worker_makes_anew_is_no_fault(started, worker):
    rig = started()
    worker()
    decoding(rig)
    queues.remove_queue(rig.processor._receiver.msqid)
    end = time.monotonic() + 3 * FLOOR
    while time.monotonic() < end:
        assert reason(rig) is None
        time.sleep(0.02)


def test_a_worker_of_another_build(started, log):
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 1)
    queue = sysv_ipc.MessageQueue(queues.locate("plain"), max_message_size=8192)
    for _ in range(20):
        queue.send(bytes(2057))
        time.sleep(0.04)
    until(lambda: gauge("refused") == 1)
    until(lambda: "another FastDeploy build" in log.text)
    assert "unhealthy (silent)" not in log.text  # what is refused is no silence
    rig.send({0: [11], 1: [12]})
    until(lambda: gauge("refused") == 0)


def test_a_neighbour_who_sends_rubbish_during_a_prefill_is_not_the_worker(started):
    rig = started()
    rig.send({0: [11], 1: [12]})
    until(lambda: rig.processor.counters.steps == 1)
    rig.insert("c", 2)
    key = queues.locate("plain")
    code = f"import sysv_ipc\nfor _ in range(9): sysv_ipc.MessageQueue({key}).send(b'x')"
    with_paddle(f"{code}\nprint('null')")
    until(lambda: rig.processor.counters.malformed == 9)
    time.sleep(2 * FLOOR)
    assert reason(rig) is None


def test_a_queue_that_cannot_be_used(started, monkeypatch):
    rig = started()
    rig.queue_refuses(monkeypatch)
    rig.send({0: [11]})
    until(lambda: reason(rig) == "queue")


def test_an_invalid_floor_is_told(started, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_SILENCE", "soon")
    rig = started()
    assert rig.processor.liveness.patience == 4
    until(lambda: "FD_POSTPROC_SILENCE='soon' is not a number of seconds" in log.text)


def test_the_watch_does_not_outlive_the_processor(started):
    def watching():
        return sum(thread.name == "fd_postproc-health" for thread in threading.enumerate())

    before = watching()
    rig = started()
    assert watching() == before + 1
    rig.processor.stop(60)
    until(lambda: watching() == before)


@pytest.mark.nightly
def test_half_an_hour_of_a_running_engine(ops_queue, worker, monkeypatch):
    """The same with a token thread, a process that sends, and pauses of 30 seconds, in real time.

    As patient as users have it: half a second is a silence that a busy machine makes.
    """
    monkeypatch.delenv("FD_POSTPROC_SILENCE")
    random_, rig = random.Random(7), Rig("plain", ["a", "b"])
    rig.start()
    try:
        process, alarms, pauses = worker(), [], 0
        decoding(rig)
        end = time.monotonic() + 1800
        while time.monotonic() < end:
            rig.insert(f"r{pauses}", 2)  # its prefill; the worker sends tokens for slots 0 and 1 alone
            process.send_signal(signal.SIGUSR1)  # pause
            over = time.monotonic() + random_.choice([1, 5, 30])
            while time.monotonic() < over:
                alarms.append(rig.processor.health())
                time.sleep(0.1)
            process.send_signal(signal.SIGUSR2)  # go on
            rig.manager.tasks_list[2] = None
            over = time.monotonic() + random_.uniform(1, 20)
            while time.monotonic() < over:
                alarms.append(rig.processor.health())
                time.sleep(0.1)
            pauses += 1
        assert pauses > 40
        assert not [alarm for alarm in alarms if alarm is not None]
        process.kill()
        began = time.monotonic()
        until(lambda: rig.processor.health() is not None)
        assert time.monotonic() - began < 5
    finally:
        rig.close()


def test_a_step_that_other_code_has_in_hand_counts():
    """FastDeploy's own stamps, by the wall clock, as its unit tests set them."""
    rig = Rig("topk", ["a"])
    try:
        processor = rig.processor
        processor.timestamp_for_alive_before_handle_batch = processor.fd.time.time() - 1
        assert processor.healthy()
        processor.timestamp_for_alive_before_handle_batch -= 1000
        assert processor.health().reason == "step"
        processor._in_hand_since = time.monotonic()  # our own by another clock
        assert processor.healthy()
    finally:
        rig.close()


def test_every_reason_is_a_value_of_the_gauge():
    source = "".join(Path(module.__file__).read_text() for module in (liveness, lifecycle))
    for one in liveness.REASONS:
        assert re.search(rf'Health\(\s*"{one}"', source), one
    assert (
        len(re.findall(r'Health\(\s*"', source)) == len(liveness.REASONS) + 1
    )  # FastDeploy's own word for a hang is one


def test_all_slots_ended_at_once_and_then_silence_is_no_alarm():
    """As at the end of a batch of aborted requests: -9 in each slot, a frame without rows."""
    rig = Rig("spec_topk", ["a", "b"])
    try:
        rig.processor.run()
        rig.send({0: [50], 1: [51]})
        until(lambda: rig.processor.tokens_counter["b"] == 1)
        rig.manager.to_be_aborted_req_id_set |= {"a", "b"}
        rig.send({0: -9, 1: -9})
        until(lambda: rig.manager.tasks_list[:2] == [None, None])
        ended = {result.request_id for results in rig.sink.puts for result in results if result.finished}
        assert ended == {"a", "b"}
        time.sleep(3 * FLOOR)  # longer than a silence, with which nothing is wrong now
        assert rig.processor.healthy()
    finally:
        rig.close()
