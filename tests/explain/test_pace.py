"""Slopes, jumps and bursts, and the even paces that are none of them."""

import random

import pytest

from fd_postproc.explain.pace import bursts, jump, slower
from tests.lib.flight_entries import codes, looks, steady, step


def steps(gaps, first=100.0, **other):
    """Steps with these seconds between them."""
    made, at = [step(first, 0, receive=0.0, **other)], first
    for k, gap in enumerate(gaps):
        at += gap
        made.append(step(at, k + 1, receive=gap, **other))
    return made


def noisy(n, gap, seed, part=0.3):
    rng = random.Random(seed)
    return [gap * (1 + part * rng.uniform(-1, 1)) for _ in range(n)]


def test_a_slope():
    change = slower(steps([0.02 * 1.02**k for k in range(150)]))
    assert change.now > 8 * change.before
    assert jump(steps([0.02 * 1.02**k for k in range(150)])) is None


def test_a_step_is_no_slope():
    """Ten times slower at once, however the steps fall into windows, and whatever the noise is."""
    for before in range(100, 132):
        for seed in range(10):
            gaps = noisy(before, 0.02, seed) + noisy(60, 0.2, seed + 1)
            assert slower(steps(gaps)) is None
            found = jump(steps(gaps))
            assert found is not None
            assert found.since == pytest.approx(100 + sum(gaps[:before]), abs=2.0)
            assert found.now / found.before == pytest.approx(10, rel=0.3)


def test_two_steps_are_no_slope():
    gaps = [*noisy(160, 0.02, 1), *noisy(32, 0.06, 2), *noisy(32, 0.18, 3)]
    assert slower(steps(gaps)) is None


def test_a_jump_is_not_told_too_early():
    assert jump(steps([0.02] * 100 + [0.2] * 16)) is None  # three seconds
    assert jump(steps([0.02] * 100 + [0.2] * 40)) is not None


@pytest.mark.parametrize("gaps", [[0.02] * 300, [0.2] * 300, [0.001] * 100 + [0.01] * 900])
def test_an_even_pace(gaps):
    assert slower(steps(gaps)) is None
    assert jump(steps(gaps)) is None
    assert bursts(steps(gaps)) == []


def test_more_requests_are_no_slower_worker():
    before, after = steps([0.02] * 100, live=2), steps([0.2] * 60, 102.2, live=9)
    assert jump([*before, *after]) is None
    assert jump([*before, *steps([0.2] * 60, 102.2, live=2)]) is not None


def test_prefills_make_steps_longer():
    gaps = [0.02] * 100 + [0.2] * 60
    assert jump(steps(gaps), [102.5 + k for k in range(12)]) is None
    assert jump(steps(gaps), [99.0] * 12) is not None


def test_an_engine_that_is_slower_is_no_slower_worker():
    slow = [step(102.2 + 0.2 * k, k, receive=0.01, put=0.19) for k in range(100)]
    assert jump([*steps([0.02] * 100), *slow]) is None
    drift = [step(100 + 0.25 * (1.04**k - 1), receive=0.001, put=0.5) for k in range(200)]
    assert slower(drift) is None
    assert codes([*steps([0.02] * 100), *slow, *looks(100.0, 122.0)], 122.1) == ["slow-engine"]


def test_a_burst():
    gaps = [0.02] * 96 + [0.0001] * 96 + [0.02] * 96
    ((at, count, within, usual),) = bursts(steps(gaps))
    assert at == pytest.approx(101.92, abs=0.7)
    assert 64 <= count <= 96
    assert within < 0.7
    assert usual == pytest.approx(0.02)


def test_steps_in_pairs_are_no_burst():
    """Their median gap is nothing, and they take as long as ever."""
    assert bursts(steps([0.02] * 96 + [0.0001, 0.0399] * 48 + [0.02] * 96)) == []
    assert bursts(steps([0.02] * 96 + [0.0001, 0.0001, 0.0598] * 32 + [0.02] * 96)) == []


def test_steps_that_make_up_for_a_pause_are_no_burst():
    assert bursts(steps([0.02] * 96 + [2.0] + [0.0001] * 99 + [0.02] * 96)) == []
    assert bursts(steps([0.02] * 80 + [2.0] + [0.0001] * 99 + [0.02] * 96)) == []


def test_more_speed_for_good_is_no_burst():
    assert bursts([*steady(100), *steady(900, 101.0, 0.001)]) == []


def test_a_slope_on_a_busy_machine():
    for seed in range(10):
        rng = random.Random(seed)
        gaps = [0.02 + rng.uniform(0, 0.01) for _ in range(100)]
        gaps += [0.02 * 1.02**k + rng.uniform(0, 0.02) for k in range(130)]
        assert slower(steps(gaps)) is not None
        assert slower(steps([*gaps, *[gaps[-1]] * 200])) is None  # it is over
