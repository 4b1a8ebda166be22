"""How a worker is judged by what is seen of it: silences, prefills, pace."""

import random

from fd_postproc import patience
from fd_postproc.environment import SILENCE
from fd_postproc.fastdeploy.engine.health.liveness import Liveness, Sight
from tests.lib.rows import each


class Clock:
    """A judge, and what it sees: looks twice a second, so that hours take no time."""

    def __init__(self, floor=4.0, prefill=120.0):
        self.judge, self.now, self.steps = Liveness(floor, prefill), 0.0, 0
        self.running, self.more, self.refused, self.busy = {}, {}, 0, False

    def look(self):
        known = frozenset(name for name, tokens in {**self.more, **self.running}.items() if tokens)
        seen = (self.now, self.steps, self.refused, dict(self.running), known)
        sight = Sight(*seen, busy=self.busy, worker=1, state="S")
        verdict = self.judge.look(sight)
        return verdict and verdict.reason

    def work(self, seconds, pace=0.02, period=0.5):
        """Steps for so many seconds; what was wrong meanwhile."""
        found, end, due = set(), self.now + seconds, self.now
        while self.now < end:
            self.now += period
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
            self.now += period
            if self.look():
                return self.now - began
        return None


@each("pace", [0.001, 0.02, 0.3, 1.0])
def test_a_silence_is_known_within_5_seconds_and_not_before_4(pace):
    clock = Clock()
    clock.running = {"a": 0, "b": 0}
    assert not clock.work(60, pace)
    assert 4 <= clock.silence(20) <= 5


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
    clock = Clock()
    clock.running = {"a": 0}
    assert not clock.work(10)
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
    clock = Clock()
    clock.running = {"a": 0}
    clock.work(10)
    clock.now += 8
    assert clock.look() is None
    assert 4 <= clock.silence(20) <= 5  # counted from then on


def test_the_shortest_silence_is_that_of_explain_and_of_the_variable():
    clock = Clock(patience.SILENCE_S)
    clock.running = {"a": 0}
    clock.work(10)
    assert clock.judge.patience == patience.SILENCE_S
    assert SILENCE.of("") == patience.SILENCE_S


def test_an_engine_that_waits_for_a_transfer_does_not_blame_the_worker():
    clock = Clock()
    clock.running, clock.busy = {"a": 0}, True
    assert not clock.work(10)
    assert clock.silence(20) is None
