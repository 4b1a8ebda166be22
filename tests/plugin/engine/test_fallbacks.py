"""What of our delivery raises falls back to FastDeploy's own: nothing is lost, nothing comes twice."""

import threading
from collections import UserList
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fd_postproc.fastdeploy.engine.health.outflow import Outflow, Outlet
from fd_postproc.fastdeploy.events.guard import MOST_IN_A_ROW, Guard
from tests.lib.plugged import new_result, sent_by
from tests.lib.quiet import Double, imported
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
double = Double()
LOOP = "_zmq_send_generated_tokens"
DELIVERY = "fd_postproc.fastdeploy.engine.delivery.delivery"


class Planted(Exception):
    pass


class Failing:
    """A function that raises at its first calls, and calls another one then."""

    def __init__(self, stock, times):
        self.stock, self.times = stock, times

    def __call__(self, *arguments, **named):
        self.times -= 1
        if self.times >= 0:
            raise Planted("in a test")
        return self.stock(*arguments, **named)


def sent(engine):
    """Tokens by request, as they came."""
    got = {}
    for one in (one for message in sent_by(engine) for results in message for one in results):
        tokens = one["outputs"]["token_ids"] if one["outputs"] else one["error_code"]
        got.setdefault(one["request_id"], []).append(tokens)
    return got


@pytest.mark.falls_back
def test_each_kind_of_failure_is_logged_once():
    log = Mock()
    guard = Guard("token processor", lambda: log, most=None)
    for error in KeyError("a"), KeyError("b"), OSError("c"), KeyError("d"):
        guard.failed(error)
    first, second = (call.args[0] for call in log.error.call_args_list)
    assert ("KeyError: 'a'" in first, "OSError: c" in second) == (True, True)


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.falls_back
def test_a_put_that_raises_is_the_schedulers(times, plan, delivery, engine, monkeypatch, fallbacks):
    before, module = fallbacks("delivery"), imported(DELIVERY)
    monkeypatch.setattr(module, "handover_in", Failing(module.handover_in, times))
    for token in range(6):
        delivery.put(engine.scheduler, [new_result(plan, "a", [token]), new_result(plan, "b", [token])])
    assert (delivery.puts, delivery.unput) == (6, 0)
    assert fallbacks("delivery") - before == min(times, MOST_IN_A_ROW)
    assert delivery.putting.is_on is (times < MOST_IN_A_ROW)
    got = engine.scheduler.get_results()
    assert {name: [one.outputs.token_ids for one in some] for name, some in got.items()} == {
        name: [[token] for token in range(6)] for name in "ab"
    }


class RaisesOnce(UserList):
    """What lies in the scheduler's table instead of a list, and refuses the first append."""

    refuses = True

    def append(self, value):
        if self.refuses:
            self.refuses = False
            raise Planted("in a test")
        super().append(value)


@pytest.mark.parametrize("interval", [0, 3])
@pytest.mark.falls_back
def test_of_a_put_that_raises_half_way_the_rest_is_the_schedulers(
    interval, plan, delivery, engine, fallbacks
):
    before = fallbacks("delivery")
    delivery.interval = interval, 100.0
    scheduler = engine.scheduler
    handover = delivery.handover_in(scheduler)
    if interval:
        handover.join_for({}, frozenset([None]))
        handover.take()
        delivery.put(scheduler, [new_result(plan, "a")])  # its first: the next one waits
        handover.take()
    scheduler.responses["b"] = RaisesOnce()
    step = [new_result(plan, name, finished=name == "c") for name in "abcd"]
    delivery.put(scheduler, step)
    assert delivery.puts == 1 + bool(interval)
    assert fallbacks("delivery") == before + 1
    handover.release()
    assert [one for some in scheduler.batch_responses_per_step for one in some] == step
    got = scheduler.get_results()
    assert {name: [one.outputs.token_ids for one in some] for name, some in got.items()} == {
        name: [[5]] for name in "abcd"
    }
    assert "c" not in scheduler.requests


def test_what_cannot_be_put_by_either_is_counted(plan, rig_of):
    rig = rig_of("plain", ["a"])
    scheduler = rig.processor.cached_generated_tokens = double.scheduler__local_scheduler.LocalScheduler()
    scheduler.put_results = Failing(None, 100)
    rig.step({0: [5]})
    assert rig.processor.counters.as_dict()["undelivered"] == 1
    assert (rig.processor.parts.pairing.delivery.puts, rig.processor.parts.pairing.delivery.unput) == (0, 1)
    del scheduler.put_results
    scheduler.requests["a"] = None
    rig.step({0: [6]})
    assert [one.outputs.token_ids for one in scheduler.get_results()["a"]] == [[6]]


@pytest.mark.falls_back
def test_a_take_that_raises_leaves_all_to_the_scheduler(plan, delivery, engine):
    """A response of FastDeploy's whose end cannot be told, once."""
    scheduler, other = engine.scheduler, plan.fd.RequestOutput("b", finished=True, error_code=500)
    response = double.scheduler__data.ScheduledResponse
    looks = []

    class Once(response):
        @property
        def finished(self):
            looks.append(1)
            if len(looks) == 1:
                raise Planted("in a test")
            return True

    delivery.put(scheduler, [new_result(plan, "a")])
    scheduler.responses["b"] = [Once(other)]
    delivery.put(scheduler, [new_result(plan, "a", [6], finished=True)])
    delivery.round(engine)
    assert sent(engine) == {"a": [[5], [6]], "b": [500]}
    assert delivery.taking.in_a_row == 1
    assert {*scheduler.requests} == {"c", "d"}


@pytest.mark.falls_back
def test_what_waits_leaves_when_joining_has_failed_too_often(rig_of, delivery, engine, monkeypatch):
    """Results with draft log-probabilities that are none, and at last one that nothing else would send."""
    pair = imported("fd_postproc.fastdeploy.engine.results._results").pair
    delivery.interval, engine.scheduler.wait_response_timeout = (2, 100.0), 0.001
    monkeypatch.setattr(delivery.joined_readers, "of", lambda engine, now: frozenset([1, 2]))
    names, rig = ["ab", *["a"] * (2 * MOST_IN_A_ROW - 1), "ab"], rig_of("plain", "ab")
    rig.processor.parts.pairing.delivery.end()  # the test's own serves
    delivery.round(engine)
    for number, step in enumerate(names):
        rig.step({"ab".index(name): [50 + number] for name in step})
        (results,) = rig.sink.puts[-1:]
        pair(results, {("a", 0): (1, 2, 3), ("b", 1): (1, 2, 3)})
        delivery.put(engine.scheduler, results)
        delivery.round(engine)
    delivery.round(engine)
    assert not delivery.taking.is_on
    last = len(names) - 1
    assert sent(engine) == {"a": [[50 + number] for number in range(last + 1)], "b": [[50], [50 + last]]}


@pytest.mark.parametrize("what", ["sorting", "sends", "packing", "serves"])
@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.falls_back
def test_a_round_that_raises(what, times, plan, delivery, engine, monkeypatch, fallbacks):
    """Every client gets all of its tokens, in their order; FastDeploy's loop takes over if that goes on."""
    before, sending = fallbacks("sending"), delivery.sending
    if what == "sorting":
        module = imported("fd_postproc.fastdeploy.engine.delivery.sending")
        monkeypatch.setattr(module, "by_process", Failing(module.by_process, times))
    elif what == "sends":
        sending._send = Failing(sending._send, times)
    elif what == "packing":
        sending.messages = SimpleNamespace(pack=Failing(sending.messages.pack, times))
    else:
        real = sending.serves
        sending.serves = Failing(real, times)
    engine.scheduler.wait_response_timeout = 0.05
    engine.running = True
    delivery.begin()
    got, sender = {}, threading.Thread(target=getattr(engine, LOOP), daemon=True)
    sender.start()

    def all_came(count):
        for name, tokens in sent(engine).items():
            got.setdefault(name, []).extend(tokens)
        return [len(got.get(name, ())) for name in "abc"] == count

    try:
        for token in range(8):
            engine.scheduler.put_results(
                [
                    *(new_result(plan, name, [token]) for name in "ab"),
                    *([plan.fd.RequestOutput("c", error_code=500)] if token == 0 else ()),
                ]
            )
            until(lambda count=token + 1: all_came([count, count, 1]))
        engine.scheduler.put_results([new_result(plan, "a", [9], finished=True)])
        until(lambda: all_came([9, 8, 1]))
        assert sender.is_alive()
    finally:
        engine.running = False
        sender.join(60)
    assert got == {
        "a": [*([token] for token in range(8)), [9]], "b": [[token] for token in range(8)], "c": [500],
    }  # fmt: skip
    assert "a" not in engine.scheduler.requests
    assert fallbacks("sending") > before
    guards = delivery.sends, sending.guard
    assert all(guard.is_on for guard in guards) is (times == 1)


@pytest.mark.falls_back
def test_a_batch_that_may_have_been_sent_is_not_sent_again(plan, delivery, engine):
    sending, send = delivery.sending, delivery.sending._send

    def raises(*arguments, **named):
        send(*arguments, **named)
        raise Planted("in a test")

    sending._send = raises
    delivery.put(engine.scheduler, [new_result(plan, "a")])
    delivery.round(engine)
    assert sent(engine) == {"a": [[5]]}
    assert delivery.sends_so_far == (0, 1)


@pytest.mark.parametrize("fails", ["sorting", "the rules, too"])
@pytest.mark.falls_back
def test_what_cannot_be_sorted_is_sent_by_fastdeploys_rules(fails, plan, delivery, engine, monkeypatch):
    module = imported("fd_postproc.fastdeploy.engine.delivery.sending")
    monkeypatch.setattr(module, "by_process", Failing(None, 100))
    if fails != "sorting":
        delivery.sending._prepared = Failing(None, 100)
    delivery.put(engine.scheduler, [new_result(plan, "a", [7], finished=True), new_result(plan, "b")])
    with pytest.raises(Planted):
        delivery.round(engine)
    assert sent(engine) == {"a": [[7]], "b": [[5]]}
    assert {"a", "b"} & {*engine.request_worker_map} == {"b"}


@pytest.mark.falls_back
def test_a_guard_is_off_after_failures_in_a_row_and_says_so(log, fallbacks):
    from prometheus_client import REGISTRY

    guard, before = Guard("delivery"), fallbacks("delivery")
    guard.failed(Planted("one"))
    guard.failed(Planted("two"))
    guard.worked()
    guard.failed(Planted("three"))
    guard.worked()
    for number in range(MOST_IN_A_ROW):
        assert guard.is_on
        guard.failed(Planted(str(number)))
    assert not guard.is_on
    guard.failed(Planted("in a call that was under way"))
    assert fallbacks("delivery") - before == 4 + MOST_IN_A_ROW
    assert REGISTRY.get_sample_value("fd_postproc_fast_path", {"path": "delivery"}) == 0
    assert log.text.count("Traceback") + log.text.count("Planted: one") >= 1
    assert len([one for one in log.records if one.levelname == "ERROR"]) == 2


# ---- undelivered -------------------------------------------------------------------------------------------


def looks(*outlets):
    """The reasons that are found at looks half a second apart; each gives (table, puts, sends)."""
    judge, found = Outflow(), []
    for number, (table, puts, sends) in enumerate(outlets):
        verdict = judge.look(Outlet(0.5 * number, table, puts, sends))
        found.append(verdict and verdict.reason)
    return found


FULL, OK = {"a": [1]}, (0, 0)


@each(
    "outlets, bad",
    [
        ([(FULL, OK, OK)] * 3, False),  # a second is not over
        ([(FULL, OK, OK)] * 4, True),
        ([(FULL, OK, OK)] * 3 + [({"b": [1]}, OK, OK)] * 2, False),  # each waits for itself
        ([(dict(FULL), OK, OK) for _ in range(9)], False),  # a sender takes them
        ([({}, OK, OK)] * 9, False),
        ([({}, (7, number), OK) for number in range(5)], True),  # every put raises
        ([({}, (number, number), OK) for number in range(9)], False),  # every other one
        ([({}, (7, min(number, 1)), OK) for number in range(9)], False),  # one did, and nobody puts
        ([({}, OK, (3, number)) for number in range(5)], True),
    ],
)
def test_results_that_do_not_leave(outlets, bad):
    assert (looks(*outlets)[-1] == "undelivered") is bad


def test_a_late_look_tells_nothing_of_the_sender():
    """This process was stopped, and its sender with it."""
    judge = Outflow()
    assert judge.look(Outlet(0.0, FULL)) is None
    assert judge.look(Outlet(3600.0, FULL)) is None
    assert judge.look(Outlet(3600.5, {})) is None
