"""`healthy`: the truth about token thread, worker and queue, within seconds, and no false alarm.

Rounds, looks and time are the test's own; the last section has real threads, and a worker that is killed.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.explain.findings import findings
from fd_postproc.explain.timeline import Picture
from fd_postproc.fastdeploy.engine.health.liveness import BUSY, REASONS
from fd_postproc.fastdeploy.engine.health.sharing import Sharing
from fd_postproc.fastdeploy.engine.health.watch import HealthWatch, _export
from fd_postproc.fastdeploy.engine.processor import flight_record
from fd_postproc.fastdeploy.engine.processor import health_check as check
from fd_postproc.fastdeploy.events.gauges import export
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import Kind
from fd_postproc.support.environment import service_number
from tests.lib.children import forked, in_a_child, python
from tests.lib.fakes import Clock
from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
# Modules whose clock is the test's.
TIMED = ("processor.health_check", "processor.loop", "processor.flight_record", "health.watch")


class Watched:
    """A processor without threads, which receives and is looked at when a test says so."""

    def __init__(self, clock, channel):
        self.clock, self.rig = clock, Rig(channel, ["a", "b"])
        self.processor = self.rig.processor
        self.watch = HealthWatch(self.processor, 0.5)
        for word in (BUSY, *REASONS):  # as its thread does when it begins
            _export(word, False)
        self.step()

    def receive(self):
        parts = self.processor.parts
        parts.loop.round(parts.queue, parts.steps, self.processor.counters.stages)

    def step(self, *more):
        self.rig.send({0: [11], 1: [12], **{slot: [13] for slot in more}})
        self.receive()

    def refuse(self):
        queue = sysv_ipc.MessageQueue(queues.locate("plain"), max_message_size=8192)
        for _ in range(3):
            queue.send(b"x" * 2057)
            self.receive()

    def remove(self):
        queues.remove_queue(self.processor.parts.queue.receiver.msqid)
        self.receive()

    def after(self, seconds):
        """The reason that is found after some seconds with two looks each; None if there is none."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.5
            self.watch._look(self.processor)
        verdict = self.processor.parts.health.health()
        return verdict and verdict.reason

    def end(self):
        self.processor.stop(0)
        self.rig.close()


@pytest.fixture
def watched(ops_queue, monkeypatch):
    """A function that makes a `Watched` which has had a step, after the one before has ended."""
    clock, made = Clock(), []
    for name in TIMED:
        monkeypatch.setattr(f"fd_postproc.fastdeploy.engine.{name}.time", clock)
    real, me = check._state_of, os.getpid()  # which sends, and runs whenever it looks at itself
    monkeypatch.setattr(check, "_state_of", lambda pid: "S" if pid == me else real(pid))

    def make(channel="plain"):
        while made:
            made.pop().end()
        made.append(Watched(clock, channel))
        return made[0]

    yield make
    while made:
        made.pop().end()


def gauge(reason):
    from prometheus_client import REGISTRY

    if reason == BUSY:
        return REGISTRY.get_sample_value("fd_postproc_busy", {"side": "worker"})
    return REGISTRY.get_sample_value("fd_postproc_unhealthy", {"reason": reason})


def in_hand(one, patch):
    one.processor.parts.loop.in_hand_since = one.clock.now


def without_queue(one, patch):
    one.rig.queue_refuses(patch)
    one.receive()


def nobody_takes(one, patch):
    patch.setattr(one.processor.cached_generated_tokens, "responses", {"a": [object()]}, raising=False)


FAULTS = [  # reason, what is done, the seconds after which it is known, words of the log
    ("silent", lambda one, patch: None, 4, "has sent nothing for"),
    ("stopped", lambda one, patch: patch.setattr(check, "_state_of", lambda pid: "T"), 4, "is stopped"),
    ("worker", lambda one, patch: patch.setattr(check, "_state_of", lambda pid: ""), 0, "is gone"),
    ("removed", lambda one, patch: one.remove(), 2, "the queue was removed"),
    ("refused", lambda one, patch: one.refuse(), 3, "another build"),
    ("queue", without_queue, 0, "cannot be used: "),
    ("undelivered", nobody_takes, 2, "nobody takes them out of the scheduler"),
    ("step", in_hand, 5, "has had a step in hand for"),
]


@each("reason, cause, seconds, words", FAULTS)
def test_each_fault_is_told_in_time_and_over_with_the_next_step(
    reason, cause, seconds, words, watched, monkeypatch, log
):
    log.clear()
    one = watched()
    assert one.after(1) is None
    with pytest.MonkeyPatch.context() as patch:
        cause(one, patch)
        if seconds:
            assert one.after(seconds - 1.5) is None
        assert one.after(2) == reason
        assert gauge(reason) == 1
        assert log.text.count(f"unhealthy ({reason}): ") == 1
        assert words in log.text
    one.processor.parts.loop.in_hand_since = None
    one.step()
    assert one.after(0.5) is None
    assert gauge(reason) == 0
    assert "healthy again, after" in log.text


def test_one_outage_of_two_reasons_lasts_from_the_first_one_on(watched, monkeypatch, log):
    one = watched()
    assert one.after(6) == "silent"
    with monkeypatch.context() as patch:
        patch.setattr(check, "_state_of", lambda pid: "")
        assert one.after(2) == "worker"
    one.step()
    assert one.after(0.5) is None
    assert [gauge("silent"), gauge("worker")] == [0, 0]
    assert "healthy again, after 3.5 s" in log.text


def test_steps_that_are_lost_are_no_silence_of_the_worker(watched, monkeypatch):
    one = watched()
    monkeypatch.setattr(one.processor.parts.steps, "process", Mock(side_effect=ValueError("planted")))
    for _ in range(8):
        one.step()
        assert one.after(1) is None


@each("foreign", [(1, 2), (1, 1)])
def test_what_is_said_of_another_service_is_the_last_that_was_seen(foreign):
    sharing = Sharing()
    texts = [
        sharing.look(now, count, text).text for now, count, text in zip((0, 1), foreign, "ab", strict=True)
    ]
    assert texts == ["a", "b" if foreign[1] > foreign[0] else "a"]


def test_after_the_end_no_fault_is_told(watched, log):
    one = watched()
    one.watch.end()
    assert one.after(6) == "silent"
    assert not gauge("silent")
    assert "unhealthy" not in log.text


def test_every_reason_is_among_them():
    others = {"thread", "other-service", "two-readers"}  # a real thread, and what outlasts a step
    assert {*others, *(reason for reason, *_ in FAULTS)} == {*REASONS}


def test_another_service_in_the_queue_is_told_for_ten_seconds(watched, log):
    """Frames of two services in one queue: no step of the other, and both services say so."""
    log.clear()
    one = watched("topk")
    ours = one.processor.parts.queue.attendance.service
    assert ours == service_number(os.environ["FD_POSTPROC_PEER"]) != 0
    sender = fp.Sender("topk", dialect="compact")

    def come(*numbers):
        for number in numbers:
            sender._service = number
            sender.send(one.rig.message({0: [11], 1: [12]}))
            one.receive()

    come(ours ^ 1, ours, ours ^ 1, ours, ours ^ 1, ours ^ 1, ours ^ 1, ours ^ 1)
    counted = one.processor.counters.as_dict()
    assert (counted["steps"], counted["foreign"], counted["malformed"]) == (3, 6, 6)
    assert one.after(1) == "other-service"
    assert gauge("other-service") == 1
    come(*[ours ^ 1] * 4)
    assert [one.after(seconds) for seconds in (1, 3)] == ["other-service"] * 2  # none was the worker's
    assert all(f"{number:08x}" in log.text for number in (ours, ours ^ 1))
    assert one.after(10) != "other-service"
    assert gauge("other-service") == 0


@each("reader, words", [(77, "process 77"), (-1, "another PID namespace")])
def test_another_reader_is_told(reader, words, watched, log, monkeypatch):
    log.clear()
    one = watched()
    assert one.processor.parts.queue.attendance.is_named
    monkeypatch.setattr(flight_record, "_watch_readers", lambda *_: reader)
    one.processor.parts.recording.watch_readers(0.1)
    assert one.after(1) == "two-readers"
    assert words in log.text
    monkeypatch.undo()


@each(
    "share, state, before, after",
    [(1, "S", BUSY, "silent"), (0, "D", BUSY, "silent"), (0, "S", "silent", "silent")],
)
def test_a_busy_worker_restarts_nobody(share, state, before, after, watched, monkeypatch, log):
    """Until the time of FastDeploy's variable is over: a deadlock may spin, too."""
    log.clear()
    monkeypatch.setenv("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", "20")
    one = watched()
    began = one.clock.now
    monkeypatch.setattr(check, "_state_of", lambda pid: state)
    monkeypatch.setattr(check, "cpu_seconds", lambda pid: share * (one.clock.now - began))
    for seconds, reason in (6, before), (13, before), (2, after):
        one.after(seconds)
        assert one.processor.parts.health.verdict().reason == reason
        assert one.processor.healthy() is (reason == BUSY)
        assert {word for word in (BUSY, *REASONS) if gauge(word)} == {reason}
    assert (f"fd_postproc: {BUSY}: " in log.text) is (before == BUSY)
    one.step()
    assert one.after(0.5) is None
    assert not gauge(before)
    assert not gauge(after)


def ended_thread(one, patch):
    one.processor.worker = threading.Thread(target=int)
    one.processor.worker.start()
    one.processor.worker.join()


@each("reason, cause", [("undelivered", nobody_takes), ("thread", ended_thread)])
def test_a_busy_worker_hides_no_fault_of_the_engine(reason, cause, watched, monkeypatch):
    monkeypatch.setenv("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", "20")
    monkeypatch.setattr(check, "_state_of", lambda pid: "D")
    one = watched()
    one.after(6)
    assert one.processor.parts.health.verdict().reason == BUSY
    cause(one, monkeypatch)
    assert one.after(2) == reason


@each("given, seconds", [("", 5.5), ("3", 3.5)])
def test_the_shorter_limit_of_a_step_counts(given, seconds, watched, monkeypatch):
    monkeypatch.setenv("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", given or "120")
    one = watched()
    in_hand(one, None)
    assert one.after(seconds - 1) is None
    assert one.after(1) == "step"


@each("hours", [-1, 1])
def test_a_step_of_the_wall_clock_neither_hides_nor_invents_a_stuck_step(hours, watched, monkeypatch):
    processor, seen = watched().processor, []
    stock = processor.fd.time.time

    def look(*arguments):
        assert processor.timestamp_for_alive_before_handle_batch  # FastDeploy's stamp is set, too
        seen.append(processor.healthy())
        monkeypatch.setattr(processor.fd.time, "time", lambda: stock() + hours * 3600)
        seen.append(processor.healthy())
        processor.parts.loop.in_hand_since -= 6
        seen.append(processor.healthy())

    processor.parts.loop._handle(None, SimpleNamespace(process=look), None)
    assert seen == [True, True, False]
    assert processor.parts.loop.in_hand_since is None
    assert processor.healthy()


def test_a_step_that_other_code_has_in_hand_counts(watched):
    """FastDeploy's own stamps, by the wall clock, as its unit tests set them."""
    one = watched()
    processor = one.processor
    processor.timestamp_for_alive_before_handle_batch = processor.fd.time.time() - 1
    assert processor.healthy()
    processor.timestamp_for_alive_before_handle_batch -= 1000
    assert processor.parts.health.health().reason == "step"
    in_hand(one, None)  # our own by another clock
    assert processor.healthy()


# ---- What is no fault --------------------------------------------------------------------------------------


def test_nothing_is_wrong_while_a_step_is_in_hand_or_nobody_waits(watched, monkeypatch):
    """Nobody reads what the worker sends, or wants it: no silence.  That it is gone is a fault, 2 s later."""
    one = watched()
    in_hand(one, None)
    assert one.after(4.5) is None
    one.processor.parts.loop.in_hand_since = None
    assert one.after(1) == "silent"
    one.rig.manager.tasks_list[:2] = None, None
    assert one.after(30) is None
    real = check._state_of
    monkeypatch.setattr(check, "_state_of", lambda pid: "")
    assert one.after(2) is None
    one.rig.manager.tasks_list[0] = one.rig.requests["a"]
    assert one.after(0.5) == "worker"
    one.rig.manager.tasks_list[0] = None  # its client has gone
    assert one.after(0.5) == "worker"
    monkeypatch.setattr(check, "_state_of", real)
    assert one.after(0.5) is None
    monkeypatch.setattr(check, "_state_of", lambda pid: "")
    assert (one.after(2), one.after(0.5)) == (None, "worker")
    assert gauge("worker") == 1


def test_a_worker_that_dies_before_its_first_message(watched, monkeypatch):
    """FastDeploy's server knows the process by which it has started its workers."""
    one = watched()
    monkeypatch.setattr(one.processor.parts.queue, "attendance", None)
    one.rig.manager.tasks_list[:2] = None, None
    process = subprocess.Popen(["sleep", "1000"])
    try:
        server = SimpleNamespace(worker_proc=process)
        monkeypatch.setattr(sys.modules["__main__"], "llm_engine", server, raising=False)
        assert one.after(30) is None
    finally:
        process.kill()
        process.wait()
    assert (one.after(2), one.after(0.5)) == (None, "worker")


def test_a_process_that_hangs_in_its_exit_is_not_healthy(watched, log):
    """A stop whose last callback does not return; a child's exit is not its parent's."""
    one = watched()
    export("active", "side", "engine", True)
    export("unhealthy", "reason", "engine", False)  # as an API server in this process may have

    def child():
        one.watch.process_ends()
        assert active() is None

    in_a_child(child)
    one.rig.manager.tasks_list[:2] = None, None
    one.after(30)
    assert (gauge("engine"), active()) == (0, 1)
    one.watch.process_ends()
    one.after(4.5)
    assert (gauge("engine"), active()) == (0, 0)
    one.after(1)
    assert gauge("engine") == 1
    assert f"unhealthy (engine): FastDeploy's stop began 5.0 s ago, and process {os.getpid()}" in log.text
    _export("engine", False)


def test_a_fault_is_not_over_because_the_process_ends(watched):
    one = watched()
    assert one.after(6) == "silent"
    one.watch.process_ends()
    one.after(4.5)
    assert gauge("silent") == 1
    _export("silent", False)


def active():
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value("fd_postproc_active", {"side": "engine"})


@each("given, seconds, reason", [("off", 60, None), ("soon", 3, None), ("soon", 5, "silent")])
def test_a_silence_may_be_of_another_length(given, seconds, reason, watched, monkeypatch, log):
    """What is no number is told, and is the usual one."""
    log.clear()
    monkeypatch.setenv("FD_POSTPROC_SILENCE", given)
    assert watched().after(seconds) == reason
    assert ("FD_POSTPROC_SILENCE='soon' is not a number of seconds" in log.text) is (given == "soon")


def test_a_removed_queue_that_the_worker_makes_anew_is_no_fault(watched):
    one = watched()
    one.remove()
    one.step()
    assert one.after(3) is None


def test_a_neighbour_who_sends_rubbish_is_not_the_worker(watched):
    """While a prefill keeps the worker silent; and a process that has ended is no reason to restart."""
    one = watched()
    one.rig.insert("c", 2)
    key = queues.locate("plain")
    in_a_child(lambda: [sysv_ipc.MessageQueue(key).send(b"x") for _ in range(9)])
    one.processor.parts.queue.attendance.sender_due = 0  # whoever is asked for next is asked for at once
    for _ in range(9):
        one.receive()
    assert one.processor.counters.malformed == 9
    assert one.after(20) is None


def test_health_is_asked_neither_of_other_queues_nor_with_the_lock_held(watched, monkeypatch):
    """The kernel's list of queues is long, and the token thread takes the lock twice a step."""
    one, held = watched(), []
    sight = check.HealthCheck._sight
    monkeypatch.setattr(queues, "_rows", None)

    def look(self):
        held.append(self.host.health_lock.locked())
        return sight(self)

    monkeypatch.setattr(check.HealthCheck, "_sight", look)
    assert one.processor.healthy()
    assert held == [False]


# ---- Real threads, a real worker ---------------------------------------------------------------------------


@pytest.fixture
def looking_often(started):
    return lambda: started(prepare=lambda rig: setattr(rig.processor.parts.lifecycle, "watch_period", 0.05))


def test_before_the_start_while_nothing_comes_and_after_the_end(started):
    def watching():
        return sum(thread.name == "fd_postproc-health" for thread in threading.enumerate())

    rig, before = Rig("plain", ["a"]), watching()
    assert rig.processor.healthy()
    rig.processor.resource_manager = None  # before the engine gives it one
    assert rig.processor.healthy()
    rig.close()
    rig = started()
    assert rig.processor.healthy()
    assert watching() == before + 1
    rig.processor.stop(60)
    assert rig.processor.parts.health.health().reason == "thread"
    until(lambda: watching() == before)


def test_a_thread_of_fastdeploys_that_has_ended_is_a_fault(started):
    rig, name = started(), "schedule_request_thread"
    parts = rig.processor.parts
    parts.pairing.delivery.ended_threads = lambda: [name]
    assert not rig.processor.healthy()
    assert parts.health.health().reason == "thread"
    assert name in parts.health.health().text


def test_a_stuck_step_is_in_the_log_the_gauge_and_the_flight_recorder(looking_often, log):
    rig, go_on = looking_often(), threading.Event()
    rig.processor.parts.health.stuck_after = 0.3
    real = rig.processor.parts.steps.process
    rig.processor.parts.steps.process = lambda *step: (go_on.wait(60), real(*step))
    rig.send({0: [11], 1: [12]})
    until(lambda: gauge("step") == 1)
    until(lambda: "unhealthy (step): the token thread has had a step in hand for" in log.text)
    entries = reading.read(rig.processor.parts.journal.recorder.path).entries
    told = [one.text for one in entries if isinstance(one, reading.Event) and one.kind == Kind.UNHEALTHY]
    assert told[0].startswith("step: ")
    go_on.set()
    until(lambda: gauge("step") == 0)


def spin_beside(parent):
    while os.getppid() == parent:
        pass


def obeying(orders):
    """Send steps until an order comes, and do as it says: ``sleep``, ``spin``, or have a child that spins."""

    test = os.getpid()

    def act():
        step = fp.Step.from_arrays("plain", [1, 1], [[11], [12]])
        deeds = {b"sleep": lambda: time.sleep(0.01), b"spin": lambda: None}
        deed, spin, parent = None, None, os.getpid()
        with fp.Sender("plain") as sender:
            while os.getppid() == test:
                if select.select([orders], [], [], 0 if deed else 0.02)[0]:
                    order = os.read(orders, 5).strip()
                    if spin is not None:
                        os.kill(spin, signal.SIGKILL)
                        os.waitpid(spin, 0)
                    spin = forked(lambda: spin_beside(parent)) if order == b"child" else None
                    deed = deeds.get(order, deeds[b"sleep"])
                elif deed is None:
                    sender.send(step)
                else:
                    deed()

    return act


@pytest.mark.realtime
def test_what_a_real_worker_does_meanwhile(looking_often, monkeypatch, log):
    """Its own work and that of its child are seen; where it ends, the silence begins; the next is well."""
    monkeypatch.setenv("FD_POSTPROC_SILENCE", "1")
    rig = looking_often()
    orders, ends = os.pipe()
    workers = [worker := forked(obeying(orders))]
    try:
        until(lambda: rig.processor.parts.queue.attendance.last_sender == worker)
        for order, reason in (b"spin ", BUSY), (b"sleep", "silent"), (b"child", BUSY), (b"sleep", "silent"):
            os.write(ends, order)
            until(lambda reason=reason: gauge(reason) == 1)
            until(lambda reason=reason: {word for word in (BUSY, *REASONS) if gauge(word)} == {reason})
        os.kill(worker, signal.SIGKILL)
        until(lambda: gauge("worker") == 1)  # nobody has waited for it: it is a zombie
        until(lambda: f"the worker's process {worker} is gone" in log.text)
        workers.append(forked(obeying(orders)))
        until(lambda: gauge("worker") == 0)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
        os.close(orders), os.close(ends)


HANGS = """
import atexit, os, sys
from tests.lib.waiting import until

def hang():  # older than FastDeploy's finalizers: after them
    from prometheus_client import REGISTRY
    until(lambda: REGISTRY.get_sample_value("fd_postproc_unhealthy", {"reason": "engine"}) == 1)
    assert REGISTRY.get_sample_value("fd_postproc_active", {"side": "engine"}) == 0
    print("hangs", flush=True)
    sys.stdin.read()

atexit.register(hang)
from fd_postproc.fastdeploy.engine.health import watch
from tests.lib.rig import Rig
watch._ENDING_S = 0.2
rig = Rig("plain", ["a"])
rig.processor.parts.lifecycle.watch_period = 0.05
rig.start()
"""


def test_an_exit_that_hangs_in_a_real_process(ops_queue, tmp_path, monkeypatch):
    """The threads that look outlive the main thread's code; the file is in use until the process is gone."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(python(HANGS), **pipes) as process:
        until(lambda: process.stdout.readline() in ("hangs\n", ""))
        (path,) = files.listed()
        picture = Picture(reading.read(path), reading.now())
        process.stdin.close()
    assert process.returncode == 0
    assert picture.state.startswith("is ending since ")
    assert [one.code for one in findings(picture)][-1:] == ["engine"]
