"""The parts of the token processor alone, on hosts without FastDeploy."""

import logging
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fd_postproc.fastdeploy.engine.lifecycle import Lifecycle
from fd_postproc.fastdeploy.engine.processor import flight_record as recordings
from fd_postproc.fastdeploy.engine.processor import loop as loops
from fd_postproc.fastdeploy.engine.processor.draft_gauges import DraftGauges
from fd_postproc.fastdeploy.engine.processor.flight_record import Recording
from fd_postproc.fastdeploy.engine.processor.journal import Journal
from fd_postproc.fastdeploy.engine.processor.loop import Loop
from fd_postproc.fastdeploy.engine.processor.pairing import Pairing
from fd_postproc.fastdeploy.engine.processor.source import Trouble
from fd_postproc.fastdeploy.engine.processor.tracing import Tracing
from fd_postproc.fastdeploy.engine.processor.transfers import Transfers
from fd_postproc.fastdeploy.events.totals import Counters
from tests.lib.fakes import Clock
from tests.lib.rows import each

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


@each(
    "heads, rates",
    [([5, 4, 2, 1], [0.8, 0.5, 0.5]), ([5, 0, 0, 3], [0.0, 0.0, 0.0]), ([0, 0, 0, 0], [None] * 3)],
)
def test_a_head_without_drafts_shows_the_rate_of_the_one_before(heads, rates, host, journal):
    host.cfg = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=3))
    host.accept_token_num_per_head, shown = heads, []
    DraftGauges(host, journal)._set_heads([SimpleNamespace(set=shown.append)] * 3)
    assert shown == rates


def test_drafts_that_are_counted_while_they_are_reported_are_reported_later(host, journal):
    gauge = SimpleNamespace(set=lambda value: None)
    names = "num_accepted_tokens_total", "num_emitted_tokens_total", "draft_acceptance_rate", "efficiency"
    metrics = SimpleNamespace(**{f"spec_decode_{name}": gauge for name in names})
    metrics.spec_decode_draft_single_head_acceptance_rate = []
    host.fd.main_process_metrics, reported = metrics, []
    host.cfg = SimpleNamespace(speculative_config=SimpleNamespace(method="mtp", num_speculative_tokens=0))
    host.num_accepted_tokens = host.num_emitted_tokens = host.num_draft_tokens = (
        host.max_num_emitted_tokens
    ) = 1
    host.accept_token_num_per_head, gauges = [], DraftGauges(host, journal)

    def inc(drafts):  # while the token thread counts a step
        reported.append(drafts)
        gauges._counted += 5

    metrics.spec_decode_num_draft_tokens_total = SimpleNamespace(inc=inc)
    for _ in range(3):
        gauges._set()
    assert reported == [0, 5, 5]


def test_the_watchdog_ends_before_the_token_thread_whose_end_it_would_report(host, journal):
    parts = Mock()
    lifecycle = Lifecycle(host, journal, parts.pairing, parts.loop)
    host.zmq_server, lifecycle.watch = None, parts.watch
    lifecycle.stop()
    assert [name for name, *_ in parts.mock_calls] == ["watch.end", "loop.stop", "pairing.delivery.end"]


def test_another_reader_of_the_queue_is_recorded_once(host, journal, monkeypatch):
    monkeypatch.setattr(recordings, "_watch_readers", lambda *_: 77)
    monkeypatch.setattr(recordings, "_last_sender_of", lambda msqid: 1)
    attendance = SimpleNamespace(receiver=SimpleNamespace(msqid=7), open_frames=(0, 0), is_named=True)
    queue = SimpleNamespace(attendance=attendance)
    host.resource_manager, journal.recorder = SimpleNamespace(tasks_list=[]), Mock()
    journal.counters.stages.end_put([None], None)  # a step
    recording = Recording(host, journal, queue, SimpleNamespace(waiting={}))
    recording.watch_readers(0)
    for _ in range(2):
        recording.look()
    assert [call.args[-1] for call in journal.recorder.look.call_args_list] == [77, 0]


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
