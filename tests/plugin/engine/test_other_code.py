"""Other code that runs while results are made, put, taken or packed, and changes what was checked before.

A finaliser, a collection's callback, a log, a lock's next holder: what has been checked is used as it was,
and nothing is read where something else lies by now.  In child processes: a mistake ends one.
"""

import contextlib
import functools
import gc

import pytest

from tests.lib.children import in_a_child
from tests.lib.fakes import DecodeLog
from tests.lib.plugged import new_result
from tests.lib.quiet import Double, imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework
double = Double()
TIMES = ("arrival_time", "inference_start_time")


def scheduler_of(*names):
    scheduler = double.scheduler__local_scheduler.LocalScheduler()
    scheduler.wait_response_timeout = 0
    scheduler.requests.update(dict.fromkeys(names))
    return scheduler


def handover_in(scheduler, plan):
    return imported("fd_postproc.fastdeploy.engine.delivery.delivery").handover_in(scheduler, plan)


def by_process(plan, results):
    results_ = imported("fd_postproc.fastdeploy.engine.results._results")
    return results_.by_process(plan, {"a": results}, {}, None, True)


# ---- a step ------------------------------------------------------------------------------------------------


class Meddler(DecodeLog):
    """A scheduler's log that is told of each request, and changes its times."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_decode_tokens(self, count):
        self.tokens = count
        self.change()


@each("value", ["none left", None, "x", 7, 5.0])
@each("name", TIMES)
def test_times_that_change_during_a_step_are_those_that_were_checked(rig_of, name, value):
    def work():
        rig = rig_of("plain", ["a"])
        rig.step({0: [5]})
        metrics = rig.requests["a"].metrics
        metrics.arrival_time, metrics.inference_start_time = 1000.0, 2000.0

        def change():
            delattr(metrics, name) if value == "none left" else setattr(metrics, name, value)

        log = Meddler(change)
        rig.processor.set_scheduler_metrics_logger(log)
        ((result,),) = rig.step({0: [6]}).values()
        assert rig.escaped == []
        assert log.tokens  # it was told, and has changed them
        made = result.metrics
        latest = made.engine_recv_latest_token_time
        assert (made.model_execute_time, made.model_forward_time) == (latest - 1000, latest - 2000)

    in_a_child(work)


# ---- results on their way ----------------------------------------------------------------------------------


class Meddling:
    """An output of another class, which is asked for its number."""

    def __init__(self, change):
        self.change = change

    @property
    def send_idx(self):
        self.change()
        return 1


def test_a_waiting_list_that_goes_while_an_interval_looks_at_a_result(plan):
    """The freed list is the next one that is made; the result was put there."""
    scheduler, stolen = scheduler_of("a"), []
    handover = handover_in(scheduler, plan)
    handover.hold(plan, 8, 1e9)
    handover.join_for({}, frozenset([None]))
    handover.take()
    first, second = new_result(plan, "a"), new_result(plan, "a")

    def change():
        del scheduler.responses["a"]
        stolen.append([])

    second.outputs = Meddling(change)
    assert handover.put([first])
    assert handover.put([second])
    assert stolen == [[]]


# ---- a collection at any moment ----------------------------------------------------------------------------


@contextlib.contextmanager
def at_a_collection(number, change):
    """Collections come with nearly every allocation, up to Python 3.11; one of them makes the change."""
    count = iter(range(1 << 20))
    begins = [lambda phase, _: phase == "start" and next(count) == number and change()]
    before, gc.callbacks[:] = gc.callbacks[:], begins
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(700, 10, 10)
        gc.callbacks[:] = before


CHANGES = {
    "outputs": lambda one: one.__delattr__("outputs"),
    "metrics": lambda one: one.__delattr__("metrics"),
    "finished": lambda one: one.__delattr__("finished"),
    "name": lambda one: one.__delattr__("request_id"),
    "tokens": lambda one: setattr(one.outputs, "token_ids", None),
    "array": lambda one: setattr(one, "ic_req_data", None),
}
WORKS = ("put", "take", "sort", "pack")


def work_on(plan, work, results):
    """One part of a result's way; a result that was changed may be refused."""
    if work == "sort":
        return lambda: by_process(plan, results)
    if work == "pack":
        packer = imported("fd_postproc.fastdeploy.engine.results._results").Messages(plan)
        return lambda: packer.pack([results])
    scheduler = scheduler_of("a")
    handover = handover_in(scheduler, plan)
    handover.hold(plan, 2, 1e9)
    handover.join_for({}, frozenset([None]))
    handover.take()
    if work == "take":
        handover.put(results)
        return handover.take
    return lambda: handover.put(results)


@each("change", CHANGES)
@each("work", WORKS)
def test_a_collection_at_any_moment(plan, rig_of, work, change):
    def every_moment():
        rig = rig_of("topk", ["a"])
        rig.step()
        for number in range(40):
            results = [rig.step()["a"][0] for _ in range(2)] + [new_result(plan, "a") for _ in range(3)]
            results[3].ic_req_data = {"text": "\ud800", "large": 1 << 70}
            doing = work_on(plan, work, results)
            changed = functools.partial(CHANGES[change], results[number % 5])
            with contextlib.suppress(Exception), at_a_collection(number, changed):
                doing()

    in_a_child(every_moment)


@each("name", TIMES)
def test_a_collection_at_any_moment_of_a_step(rig_of, name):
    def every_moment():
        rig = rig_of("topk", ["a"])
        for number in range(200):
            metrics = rig.requests["a"].metrics
            setattr(metrics, name, 1000.0)
            rig.step()
            with at_a_collection(number, lambda metrics=metrics: metrics.__delattr__(name)):
                rig.step()

    in_a_child(every_moment)
