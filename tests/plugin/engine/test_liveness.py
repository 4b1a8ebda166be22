"""How a worker is judged by what is seen of it: silences, prefills, pace."""

import random

from fd_postproc.fastdeploy.engine.health.liveness import BUSY, Liveness, Sight
from fd_postproc.support import patience
from fd_postproc.support.environment import SILENCE
from tests.lib.rows import each


class Clock:
    """A judge, and what it sees: looks twice a second, so that hours take no time."""

    def __init__(self, floor=4.0, prefill=120.0):
        self.judge, self.now, self.steps = Liveness(floor, prefill), 0.0, 0
        self.running, self.more, self.refused, self.engine_busy = {}, {}, 0, False
        self.worker, self.state, self.cpu, self.share = 1, "S", 100.0, 0.0  # and how much it works

    def look(self):
        known = frozenset(name for name, tokens in {**self.more, **self.running}.items() if tokens)
        seen = (self.now, self.steps, self.refused, dict(self.running), known)
        cpu = self.cpu if self.state and self.steps == self.judge.steps else None
        sight = Sight(*seen, engine_busy=self.engine_busy, worker=self.worker, state=self.state, cpu=cpu)
        verdict = self.judge.look(sight)
        return verdict and verdict.reason

    def go_on(self, seconds):
        self.now += seconds
        if self.cpu is not None:
            self.cpu += self.share * seconds

    def work(self, seconds, pace=0.02, period=0.5):
        """Steps for so many seconds; what was wrong meanwhile."""
        found, end, due = set(), self.now + seconds, self.now
        while self.now < end:
            self.go_on(period)
            while due <= self.now:
                self.steps += 1
                due += pace
                for name in self.running:
                    self.running[name] += 1
            found.add(self.look())
        return found - {None}

    def silence(self, seconds, period=0.5):
        """When a silence was taken for a death, in seconds; None: never."""
        began = self.now
        while self.now < began + seconds:
            self.go_on(period)
            if self.look() not in (None, BUSY):
                return self.now - began
        return None

    def reasons(self, seconds, period=0.5):
        """What each look of a time without steps found: each reason once in a row, and since when."""
        began, found = self.now, [(None, 0)]
        while self.now < began + seconds:
            self.go_on(period)
            reason = self.look()
            if reason != found[-1][0]:
                found.append((reason, self.now - began))
        return found[1:]


def at_work(seconds=10, pace=0.02, period=0.5):
    """A judge that has seen one request run for so long, and nothing wrong."""
    clock = Clock()
    clock.running = {"a": 0}
    assert not clock.work(seconds, pace, period)
    return clock


@each("pace", [0.001, 0.02, 0.3, 1.0])
def test_a_silence_is_known_within_5_seconds_and_not_before_4(pace):
    assert 4 <= at_work(60, pace).silence(20) <= 5


def test_who_is_slow_is_given_more_time():
    clock = Clock()
    clock.running = {"a": 0}
    pace = 0.02
    while pace < 15:
        assert not clock.work(10 * pace, pace)
        pace *= 1.15
    assert 40 < clock.silence(200) <= 62
    assert not clock.work(600, 0.02)
    assert clock.silence(20) <= 5  # that is forgotten


def test_refusals_of_before_the_last_step_do_not_count():
    """Two now and then are an accident; three without a step between them are another build."""
    clock = at_work()
    for _ in range(5):
        clock.refused += 2
        assert clock.silence(3.5) is None
        assert not clock.work(1)
    clock.refused += 3
    assert 2 <= clock.silence(10) <= 3


def test_what_waits_before_the_first_token_has_the_time_of_a_prefill():
    clock = Clock(prefill=120)
    clock.running = {"a": 0}
    assert 120 <= clock.silence(200) <= 122


def test_a_request_that_was_preempted_is_computed_anew():
    clock = Clock()
    clock.running = {"a": 0, "b": 0}
    assert not clock.work(10)
    clock.more["b"] = clock.running.pop("b")
    assert not clock.work(10)
    clock.running["b"] = clock.more.pop("b")
    assert clock.silence(30) is None
    assert not clock.work(10)
    assert clock.silence(30) <= 5


def test_half_an_hour_with_prefills_of_30_seconds_has_no_false_alarm():
    """Requests come and go, some preempted; each may stop all others for half a minute."""
    random_, clock, number = random.Random(7), Clock(), 0
    while clock.now < 1800:
        number += 1
        clock.running[f"r{number}"] = 0
        assert clock.silence(random_.choice([0, 0.2, 1, 10, 30])) is None
        if len(clock.running) > 3:
            name = random_.choice(list(clock.running))
            tokens = clock.running.pop(name)
            if random_.random() < 0.3:
                clock.more[name] = tokens
        if clock.more and random_.random() < 0.5:
            name, tokens = clock.more.popitem()
            clock.running[name] = tokens
            assert clock.silence(random_.choice([0, 1, 30])) is None
        assert not clock.work(random_.uniform(1, 60), random_.choice([0.02, 0.5]))
    assert clock.silence(30) is not None


def test_a_look_that_comes_late_is_no_silence_of_the_worker():
    """The engine was stopped for eight seconds: messages wait, and none has been read yet."""
    clock = at_work()
    clock.now += 8
    assert clock.look() is None
    assert 4 <= clock.silence(20) <= 5  # counted from then on


def test_the_shortest_silence_is_that_of_explain_and_of_the_variable():
    assert at_work().judge.patience == patience.SILENCE_S
    assert SILENCE.of("") == patience.SILENCE_S


def test_an_engine_that_waits_for_a_transfer_does_not_blame_the_worker():
    clock = Clock()
    clock.running, clock.engine_busy = {"a": 0}, True
    assert not clock.work(10)
    assert clock.silence(20) is None


QUIET = {  # the worker, for how long nothing comes, and what is found from which second on
    "busy 6 s": ({"share": 1.0}, 6, [(BUSY, 4.5)]),
    "busy 20 s": ({"share": 1.0}, 20, [(BUSY, 4.5)]),
    "its compiler is, on a loaded machine": ({"share": 0.3}, 20, [(BUSY, 4.5)]),
    "it waits for a processor": ({"share": 0.05, "state": "R"}, 20, [(BUSY, 4.5)]),
    "asleep": ({}, 6, [("silent", 4.5)]),
    "it polls": ({"share": 0.15}, 6, [("silent", 4.5)]),
    "it spins for ever": ({"share": 1.0}, 130, [(BUSY, 4.5), ("silent", 120.5)]),
    "the kernel works for it": ({"state": "D"}, 20, [(BUSY, 4.5)]),
    "the kernel never comes back": ({"state": "D"}, 130, [(BUSY, 4.5), ("silent", 120.5)]),
    "stopped": ({"state": "T"}, 6, [("stopped", 4.5)]),
    "gone": ({"state": ""}, 6, [("worker", 0.5)]),
    "no process is known": ({"worker": 0, "state": "", "cpu": None}, 6, [("silent", 4.5)]),
    "/proc hides it": ({"cpu": None}, 6, [("silent", 4.5)]),
}


@each("why", QUIET)
def test_a_worker_at_work_is_told_from_a_silent_one(why):
    worker, seconds, found = QUIET[why]
    for period in 0.5, 0.125:  # whoever asks in between changes nothing
        clock = at_work(10, 0.03, period)
        vars(clock).update(worker)
        told = clock.reasons(seconds, period)
        assert [reason for reason, _ in told] == [reason for reason, _ in found]
        for (_, at), (_, due) in zip(told, found, strict=True):
            assert due - 0.5 <= at <= due


def test_work_that_ends_without_a_step_is_a_silence_from_then_on():
    """And a worker that works now and then is busy all the time, not again and again."""
    clock = at_work(10, 0.03)
    found = []
    for clock.share in 1, 0, 1, 0, 1:
        found += [reason for reason, _ in clock.reasons(3)]
    assert found == [BUSY, BUSY, BUSY]
    clock.share = 0
    assert clock.reasons(6) == [(BUSY, 0.5), ("silent", 4.5)]


def test_a_long_work_does_not_hide_the_next_silence():
    clock = at_work(10, 0.03)
    clock.share = 1
    assert clock.silence(20) is None
    assert not clock.work(0.5, 0.5)  # one step, and then the usual ones
    assert not clock.work(3, 0.03)
    assert clock.reasons(3) == []
    clock.share = 0
    assert clock.reasons(2) == []  # that work was over before anybody had to know of it
    assert not clock.work(3, 0.03)
    assert clock.silence(20) <= 5
    clock.share = 1  # while steps come, nobody asks for it
    assert not clock.work(20, 0.03)
    clock.share = 0
    assert clock.reasons(6) == [("silent", 4.5)]
