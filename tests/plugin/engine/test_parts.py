"""The parts of the token processor alone, on hosts without FastDeploy."""

import logging
import threading
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.engine.processor import loop as loops
from fd_postproc.fastdeploy.engine.processor.draft_gauges import DraftGauges
from fd_postproc.fastdeploy.engine.processor.journal import Journal
from fd_postproc.fastdeploy.engine.processor.loop import Loop
from fd_postproc.fastdeploy.engine.processor.pairing import Pairing
from fd_postproc.fastdeploy.engine.processor.source import Trouble
from fd_postproc.fastdeploy.engine.processor.tracing import Tracing
from fd_postproc.fastdeploy.engine.processor.transfers import Transfers
from fd_postproc.fastdeploy.events.totals import Counters
from tests.lib.fakes import Clock

LOG = logging.getLogger("parts")


@pytest.fixture
def journal():
    return Journal(lambda: LOG)


@pytest.fixture
def host():
    """What the parts ask of FastDeploy's token processor."""
    fd = SimpleNamespace(llm_logger=LOG, time=Clock(), envs=SimpleNamespace(), main_process_metrics=None)
    return SimpleNamespace(fd=fd, health_lock=threading.Lock(), worker=None, _batch_result_buffer=None)


class Source:
    """A source that gives what a test says, or raises it."""

    def __init__(self, *entries):
        self.entries, self.patience, self.woken = list(entries), [], 0

    def next(self, patience):
        self.patience.append(patience)
        entry = self.entries.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    def failed(self, error):
        if isinstance(error, OSError):
            return Trouble("queue", str(error)), None
        raise error

    def wake(self):
        self.woken += 1


def test_the_loop_owns_what_goes_wrong_and_what_is_in_hand(host, journal):
    ending = SimpleNamespace(transfers=SimpleNamespace(waiting={}), serve_transfers=lambda: None)
    late = []
    pairing = SimpleNamespace(waits=False, give_up_draft=lambda: late.append(True))
    loop = Loop(host, journal, ending, pairing)
    seen = []

    def process(step, _):
        seen.append((step, loop.in_hand_since is not None))
        if step == "odd":
            raise KeyError(step)

    source, steps = Source("one", "odd", None, OSError("no queue"), ValueError("ours")), SimpleNamespace()
    steps.process = process
    for _ in range(5):
        loop.round(source, steps, None)
    assert seen == [("one", True), ("odd", True)]
    assert loop.in_hand_since is None
    assert late == [True]
    assert loop.trouble == Trouble("queue", "no queue", 0)
    assert journal.counters.lost_steps == 2
    assert source.patience == [None] * 5


def test_what_waits_is_not_put_off_by_messages_that_are_refused(host, journal, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loops, "time", clock)
    ending = SimpleNamespace(transfers=SimpleNamespace(waiting={}))
    late = []
    pairing = SimpleNamespace(waits=True, give_up_draft=lambda: late.append(clock.now))
    loop, source = Loop(host, journal, ending, pairing), Source(*[OSError("refused")] * 3)
    for _ in range(3):
        loop.round(source, None, None)
        clock.now += 0.2
    assert [round(one, 6) for one in source.patience] == [0.5, 0.3, 0.1]
    assert late == []
    loop.round(source, None, None)
    assert len(late) == 1


def test_the_loop_ends_by_its_source_and_a_failure_to_wake_is_logged_only(host, journal):
    loop, source = Loop(host, journal, None, None), Source()
    loop.stop()
    loop._source = source
    loop.stop()
    source.wake = lambda: 1 / 0
    loop.stop()
    assert source.woken == 1
    assert journal.failed == {"waking the token thread"}


def test_a_journal_counts_and_goes_on(journal, caplog):
    assert isinstance(journal.counters, Counters)
    assert journal.best_effort("a thing", lambda a: a + 1, 1) == 2
    for _ in range(3):
        assert journal.best_effort("a thing", int, "x") is None
    assert len(caplog.records) == 1


def test_transfers_are_waited_for_on_a_clock_and_taken_once(host, journal):
    news = [[["a", "finished"]], []]
    host.prefill_result_status = {}
    host.engine_worker_queue = SimpleNamespace(get_finished_req=lambda: news.pop(0) if news else [])
    tasks = [object(), object(), object()]
    host.resource_manager = SimpleNamespace(tasks_list=tasks)
    transfers = Transfers(host, journal)
    assert transfers.has_ended("a")
    assert not transfers.has_ended("b")
    host.prefill_result_status["c"] = "finished"
    transfers.waiting = {"b": (0, tasks[0], "of b"), "c": (1, tasks[1], "of c"), "d": (2, object(), "of d")}
    assert list(transfers.taken()) == [(1, tasks[1], "of c")]
    assert list(transfers.waiting) == ["b"]


def test_targets_wait_for_their_draft_and_leave_in_order(host, journal):
    host.cfg = SimpleNamespace(speculative_config=SimpleNamespace(method="mtp"))
    host.use_logprobs = host.enable_draft_logprob = True
    pairing, put = Pairing(host, journal), []
    pairing.deliver = put.append

    def result(finished=False):
        return SimpleNamespace(request_id="a", finished=finished, outputs=SimpleNamespace(index=0))

    first, last, draft = result(), result(True), result()
    draft.outputs.draft_top_logprobs = "rows"
    pairing.postprocess([first])
    assert (put, pairing.waits) == ([], True)
    pairing.postprocess([draft], 4)
    assert (put, first.outputs.draft_top_logprobs, pairing.waits) == ([[first]], "rows", False)
    pairing.postprocess([first])
    pairing.postprocess([last])
    assert put[1:] == [[first], [last]]


def test_gauges_and_traces_of_a_fastdeploy_without_them(host, journal):
    counts = []
    host._record_speculative_decoding_metrics = counts.append
    host.fd.main_process_metrics = object()
    gauges = DraftGauges(host, journal)
    gauges.count(SimpleNamespace(counts=[2, 0]))
    gauges.report()
    assert counts == [[2, 0]]
    tracing = Tracing(host, journal)
    tracing.name_thread()
    tracing.carry("a", None)
    assert tracing.id_of("cmpl-1_0") == "cmpl-1"
    assert not journal.failed
