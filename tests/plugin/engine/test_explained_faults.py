"""Faults that really happen, to a token processor with a real queue: its file alone names each."""

import os
import signal
from unittest import mock

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.explain.findings import findings
from fd_postproc.explain.story import story_of, told
from fd_postproc.explain.timeline import Picture
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.reading import QueueEntry, StepEntry
from tests.core.test_killed_processes import forked
from tests.lib.quiet import imported
from tests.lib.rig import Rig
from tests.lib.waiting import until

pytestmark = pytest.mark.framework


@pytest.fixture
def rig(started):
    """A function that makes a rig whose token thread runs, and has processed a step."""

    def make(channel="spec_topk", names=("a", "b")):
        rig = started(channel, names)
        rig.send({0: [50], 1: [51]})
        until(lambda: any(isinstance(entry, StepEntry) for entry in flight(rig).entries))
        return rig

    return make


def flight(rig):
    return reading.read(rig.processor.recorder.path)


def picture(rig, later=0.0):
    """As another process would see it, some seconds later, in which somebody has looked and no step came."""
    read = flight(rig)
    looks = [entry for entry in read.entries if isinstance(entry, QueueEntry)]
    if later and looks:
        read.entries.append(looks[-1]._replace(at=reading.now() + later))
    object.__setattr__(read, "writer", os.getpid())  # a process does not see its own lock
    return Picture(read, reading.now() + later)


def codes(rig, later=0.0):
    return {one.code for one in findings(picture(rig, later))}


def a_sender(rig, *steps, channel="spec_topk"):
    """A process that has sent steps, and lives."""

    def send():
        with fp.Sender(channel, dialect="compact") as sender:
            for tokens in steps:
                sender.send(rig.message(tokens))
        signal.pause()

    before = rig.processor.counters.steps
    child = forked(send)
    until(lambda: rig.processor.counters.steps == before + len(steps))
    return child


def end(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_nothing_is_wrong(rig):
    rig = rig()
    rig.processor.look()
    assert codes(rig) == set()


def test_a_worker_that_is_killed(rig):
    rig = rig()
    rig.processor.look()
    child = a_sender(rig, {0: [60]}, {0: [61]})
    rig.processor.look()
    end(child)
    rig.processor.look()
    assert codes(rig) == {"worker"}
    now = picture(rig, later=60.0)
    text = " ".join(told(now, story_of(now, "a")))
    assert "It has no end" in text
    assert f"process {child}, which sent the last step, is gone" in text


def test_a_sender_that_dies_in_the_middle_of_a_frame(default_limits, rig):
    default_limits("msgmax", 200)
    rig = rig()
    whole = fp.encode(rig.message({0: [1, 2, 3], 1: [4, 5, 6]}, columns=9), "compact")
    payload = bytearray(whole[:200])
    payload[56:60] = (0).to_bytes(2, "little") + (2).to_bytes(2, "little")  # piece 0 of 2
    sysv_ipc.MessageQueue(queues.locate("spec_topk")).send(bytes(payload), type=2)
    until(lambda: rig.processor._receiver.stats["fragments"] == 1)
    assert codes(rig) == set()  # more may come
    rig.processor.look()
    until(lambda: (rig.processor.look(), codes(rig))[1])
    assert codes(rig) == {"frames"}
    assert [one.kind for one in picture(rig).events].count(Kind.OPEN) == 1  # however often one looks


def test_a_sender_of_another_version(rig):
    rig = rig()
    payload = bytearray(fp.encode(rig.message({0: [60]}), "compact"))
    payload[16] = 99
    sysv_ipc.MessageQueue(queues.locate("spec_topk")).send(bytes(payload), type=2)
    until(lambda: rig.processor.counters.malformed)
    assert codes(rig) == {"malformed"}


def fill(rig):
    with fp.Sender("spec_topk", dialect="compact") as sender:
        while True:
            sender.send(rig.message({0: [60], 1: [61]}), timeout=0.05)


def test_a_step_that_hangs_and_a_queue_that_fills(rig):
    rig = rig()
    with rig.processor.health_lock:  # which the token thread takes at every step
        with pytest.raises(fp.QueueTimeout):
            fill(rig)
        rig.processor.look()
        found = codes(rig, later=6.0)
    assert {"step", "queue-full"} <= found


def test_another_reader_of_the_queue(rig):
    rig = rig()

    def read():
        receiver = fp.Receiver("spec_topk")
        with fp.Sender("spec_topk", dialect="compact") as sender:
            for _ in range(500):
                sender.send(rig.message({0: [60]}))
                if receiver.receive(0) is not None:
                    os._exit(0)
        os._exit(1)

    with rig.processor.health_lock:  # so that it is the other one who gets something
        rig.send({0: [60]})
        until(lambda: rig.processor.recorder.ring is not None)
        child = forked(read)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rig.processor.look()
    assert "two-readers" in codes(rig)


def test_a_plug_in_that_stands_aside(ops_queue, tmp_path, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    activation = imported("fd_postproc.fastdeploy.engine.activation")
    with mock.patch.object(
        activation, "decide", return_value=activation.Decision(False, "planted by a test")
    ):
        Rig("spec_topk", ["a"])
    (path,) = files.listed()
    (found,) = findings(Picture(reading.read(path), reading.now()))
    assert found.code == "stood-aside"
    assert "planted by a test" in found.text


def test_an_engine_that_is_killed_in_a_step(ops_queue, tmp_path, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))

    def engine():
        rig = Rig("spec_topk", ["a"])
        rig.start()
        rig.sink.put_results = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        rig.send({0: [50]})
        signal.pause()

    os.waitpid(forked(engine), 0)
    (path,) = files.listed()
    (found,) = findings(Picture(reading.read(path), reading.now()))
    assert found.code == "engine"
    assert "in the middle of a step" in found.text
