"""Results on their way into FastDeploy's scheduler and to its sender; tokens in the scheduler's log."""

import logging
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from tests.lib import fakes
from tests.lib.quiet import Double, imported
from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
double = Double()


@pytest.fixture
def scheduler():
    made = double.scheduler__local_scheduler.LocalScheduler()
    made.requests.update({"a": None, "b": None, "c": None})
    return made


def handover_in(scheduler, plan):
    return imported("fd_postproc.fastdeploy.engine.delivery.delivery").handover_in(scheduler, plan)


def results(plan, *names):
    return [plan.new_result(slot, 1, name, 3, None) for slot, name in enumerate(names)]


def test_the_token_thread_delivers_the_fast_path(scheduler, rig_of):
    rig = rig_of("topk", ["a", "b"])
    rig.processor.cached_generated_tokens = scheduler
    scheduler.put_results = None  # not called
    rig.step({0: [5], 1: [6]})
    assert scheduler.responses == {}  # what an instance has in its place counts
    del scheduler.put_results
    rig.step({0: [7], 1: [8]})
    assert rig.processor.parts.pairing.delivery.handover_in(scheduler) is not None
    got = scheduler.get_results()
    assert {name: result[0].outputs.token_ids for name, result in got.items()} == {"a": [7], "b": [8]}


@pytest.mark.parametrize("table", ["requests", "responses"])
def test_tables_of_another_class_are_fastdeploys_alone(plan, scheduler, table):
    setattr(scheduler, table, defaultdict(list, getattr(scheduler, table)))
    assert handover_in(scheduler, plan) is None


class CountedCondition(threading.Condition):
    waits = 0

    def wait(self, timeout=None):
        self.waits += 1
        return super().wait(timeout)


@pytest.mark.parametrize("putter", ["ours", "fastdeploy"])
def test_a_sender_that_is_woken_for_nothing_looks_once(putter, plan, scheduler):
    """As on a decode node, where FastDeploy puts an empty list every millisecond."""
    scheduler.responses_not_empty = woken = CountedCondition(scheduler.mutex)
    scheduler.wait_response_timeout = 300
    handover, got = handover_in(scheduler, plan), []
    sender = threading.Thread(target=lambda: got.append(handover.take()))
    sender.start()
    until(lambda: woken.waits)
    for _ in range(30):
        scheduler.put_results([])
        time.sleep(0.001)
    made = results(plan, "a")
    assert handover.put(made) if putter == "ours" else not scheduler.put_results(made)
    sender.join(60)
    assert got == [{"a": made}]
    assert woken.waits == 1


def nothing_touched(scheduler):
    return scheduler.responses == {} and scheduler.batch_responses_per_step == []


THEIRS = {
    "an expired request": lambda plan: results(plan, "a", "expired"),
    "only an expired request": lambda plan: results(plan, "expired"),
    "an end that is no bool": lambda plan: [*results(plan, "a"), ended(plan, 1)],
    "another end that is no bool": lambda plan: [*results(plan, "a"), ended(plan, None)],
    "another class": lambda plan: [*results(plan, "a"), plan.fd.RequestOutput("b")],
}


def ended(plan, finished):
    (made,) = results(plan, "b")
    made.finished = finished
    return made


@each("what", THEIRS)
def test_what_is_fastdeploys_business(what, plan, scheduler):
    assert not handover_in(scheduler, plan).put(THEIRS[what](plan))
    assert nothing_touched(scheduler)


def test_debug_lines_that_somebody_reads_are_fastdeploys(plan, scheduler):
    handover, log = handover_in(scheduler, plan), double.utils.scheduler_logger
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        assert not handover.put(results(plan, "a"))
        assert handover.take() is None
    finally:
        log.setLevel(level)
    assert nothing_touched(scheduler)


@each("other", [None, object(), SimpleNamespace(put_results=print), Rig])
def test_no_scheduler_of_fastdeploys(other, plan):
    assert handover_in(other, plan) is None


# ---- the scheduler's log ---------------------------------------------------------------------------


class Log:
    def __init__(self):
        self.enabled, self.tokens, self.lock = True, 0, threading.Lock()

    def on_decode_tokens(self, count):
        with self.lock:
            self.tokens += count


class Failing(Log):
    def on_decode_tokens(self, count):
        raise RuntimeError


@each(
    "log, sums",
    [
        (fakes.DecodeLog, True),
        (Log, False),
        (Failing, False),
        (lambda: SimpleNamespace(on_decode_tokens=print), False),
    ],
)
def test_whether_a_step_may_be_told_in_one_call(log, sums):
    advance = imported("fd_postproc.fastdeploy.engine.processor.step")
    assert advance.adds_up(log()) is sums


@each("log", [Log, fakes.DecodeLog])
def test_tokens_of_requests_that_decode_are_told(log, rig_of, fallbacks):
    """One by one, and as a sum."""
    rig, told = rig_of("spec_topk", ["a", "b", "c", "d"]), log()
    rig.step()  # each one's first token is told by itself
    rig.processor.set_scheduler_metrics_logger(told)
    rig.requests["b"].need_prefill_tokens, rig.requests["b"].num_computed_tokens = 9, 8
    rig.requests["c"].need_prefill_tokens = None
    rig.requests["d"].need_prefill_tokens, rig.requests["d"].num_computed_tokens = 9, 9
    rig.step({0: [11, 12], 1: [13], 2: [14, 15, 16], 3: [17]})
    assert told.tokens == 3
    told.lock = told.tokens = None  # it fails when it counts
    before = fallbacks("decode log")
    assert rig.step({0: [13]})["a"][0].outputs.token_ids == [13]
    assert (rig.escaped, fallbacks("decode log")) == ([], before + 1)


# ---- FastDeploy's sender waits in the scheduler until results are put ---------------------------------

STOCK = 0.001


@pytest.fixture
def wake_up():
    return imported("fd_postproc.fastdeploy.engine.delivery.wake_up")


def test_the_wait_is_long_and_given_back_unless_another_one_is_there(scheduler, wake_up):
    one = wake_up.WakeUp(scheduler)
    assert "0.5 s instead of 0.001 s" in one.begin()
    assert scheduler.wait_response_timeout == wake_up.LONGEST_WAIT_S
    assert one.begin() == ""  # again: nothing to do
    for _ in range(2):
        one.end()
        assert scheduler.wait_response_timeout == STOCK
    assert one.begin()
    scheduler.wait_response_timeout = 7.0  # by somebody else
    one.end()
    assert wake_up.WakeUp(scheduler).begin() == ""
    assert scheduler.wait_response_timeout == 7.0


@each("value, kept", [("1", True), ("0", False), ("", False)])
def test_the_environment_may_keep_fastdeploys(value, kept, plan, scheduler, wake_up, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_KEEP_POLLING", value)
    one = wake_up.WakeUp(scheduler)
    one.begin()
    assert (scheduler.wait_response_timeout == STOCK) is kept
    one.end()


def test_which_scheduler_waits(scheduler, wake_up):
    """The one inside a data-parallel scheduler, too; what is none is left alone."""
    assert wake_up.waits_in(SimpleNamespace(_scheduler=scheduler, put_results=None)) is scheduler
    values = {"wait_response_timeout": 1.0}, {"_scheduler": 1}, {}
    for what in (None, object(), *(SimpleNamespace(**value) for value in values)):
        assert wake_up.waits_in(what) is None


def test_a_token_processor_that_runs_has_made_it_long(scheduler, started, log):
    def prepare(rig):
        rig.processor.cached_generated_tokens = scheduler
        assert scheduler.wait_response_timeout == STOCK

    rig = started("topk", prepare=prepare)
    assert scheduler.wait_response_timeout > 100 * STOCK
    assert "results are sent when they are put" in log.text
    rig.processor.stop(60)
    assert scheduler.wait_response_timeout == STOCK


def test_a_scheduler_that_cannot_be_looked_at_does_not_stop_the_start(started, fallbacks):
    class Odd:
        @property
        def wait_response_timeout(self):
            raise RuntimeError("not now")

    before = fallbacks("wake-up")
    rig = started("topk", prepare=lambda rig: setattr(rig.processor, "cached_generated_tokens", Odd()))
    assert rig.processor.worker.is_alive()
    assert fallbacks("wake-up") == before + 1
