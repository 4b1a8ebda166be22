"""What is told of the token thread beside it: while steps come, when they stop, and when it stops."""

import threading

import pytest

from fd_postproc.fastdeploy.engine.processor import reporter
from fd_postproc.fastdeploy.events import totals
from tests.lib.quiet import imported
from tests.lib.waiting import until

pytestmark = pytest.mark.framework

EXPORTED = "fd_postproc_steps_total"
ACCEPTED = "spec_decode_num_accepted_tokens_total"


def sample(name):
    found = imported("prometheus_client").REGISTRY.collect()
    values = [one.value for metric in found for one in metric.samples if one.name.endswith(name)]
    return values[0] if values else 0.0


@pytest.fixture
def running(started, monkeypatch):
    """A function that starts a token thread, with gauges and counters told as often as given."""

    def start(gauge_period, period):
        monkeypatch.setattr(totals, "EXPORT_S", period)
        return started("spec", prepare=lambda rig: setattr(rig.processor, "gauge_period", gauge_period))

    return start


def alive():
    return {thread for thread in threading.enumerate() if thread.name == "fd_postproc-reporter"}


@pytest.fixture
def reporters():
    """A function: the threads of this test, whatever else the process has running."""
    before = alive()
    return lambda: alive() - before


def test_the_last_steps_are_told_though_no_other_comes(running):
    rig, before = running(gauge_period=0.05, period=0.1), sample(EXPORTED)
    rig.send(*[{0: [20, 21], 1: [30]}] * 5, dialect="packed")
    until(lambda: sample(EXPORTED) == before + 5)
    assert rig.processor.parts.queue.receiver is not None
    until(lambda: not rig.processor.parts.gauges.is_due)
    assert sample(ACCEPTED) == rig.processor.num_accepted_tokens == 5


def test_nobody_looks_up_from_waiting_to_tell_but_fastdeploys_method_tells_at_once(running):
    rig = running(gauge_period=1000.0, period=1000.0)
    rig.send(*[{0: [20, 21], 1: [30]}] * 2, dialect="packed")
    until(lambda: len(rig.sink.puts) == 2)
    assert rig.processor.parts.gauges.is_due
    assert rig.processor.parts.loop._patience() is None  # a wait with a limit makes messages late
    rig.through_tensors({0: [22, 23], 1: [31]})
    assert not rig.processor.parts.gauges.is_due
    assert sample(ACCEPTED) == 3


def test_the_end_tells_all(reporters, running):
    rig, before = running(gauge_period=1000.0, period=1000.0), sample(EXPORTED)
    rig.send({0: [20], 1: [30]}, {0: [21, 22], 1: [31]}, dialect="packed")
    until(lambda: len(rig.sink.puts) == 2)
    assert len(reporters()) == 1
    looks = []  # at the queue: the last state is in the flight recorder's file
    rig.processor.parts.recording.look = lambda: looks.append(len(reporters()))
    rig.processor.stop(60)
    assert not reporters()
    assert 0 in looks
    assert sample(EXPORTED) == before + 2
    assert sample(ACCEPTED) == rig.processor.num_accepted_tokens == 1


def test_what_fails_in_it_is_logged_once_and_goes_on(reporters, running, monkeypatch):
    def fail(*_):
        raise ValueError("planted by a test")

    rig = running(gauge_period=0.01, period=0.01)
    monkeypatch.setattr(totals.Reports, "refresh", fail)
    for _ in range(3):
        steps = rig.processor.counters.steps
        rig.send({0: [20], 1: [30]}, dialect="packed")
        until(lambda steps=steps: rig.processor.counters.steps == steps + 1)
    until(lambda: rig.processor.counters.steps == 3)
    assert len(reporters()) == 1
    until(lambda: "exported counters" in rig.processor.parts.journal.failed)


def test_without_a_thread_steps_are_processed_all_the_same(running, monkeypatch):
    def refuse(self):
        if self.name == "fd_postproc-reporter":
            raise RuntimeError("can't start new thread")
        start(self)

    start = threading.Thread.start
    monkeypatch.setattr(reporter.threading.Thread, "start", refuse)
    rig = running(gauge_period=0.01, period=0.01)
    rig.send({0: [20], 1: [30]}, dialect="packed")
    until(lambda: rig.sink.puts)
    assert rig.processor.healthy()
    rig.processor.stop(60)
    assert not rig.processor.worker.is_alive()
