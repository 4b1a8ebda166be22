"""The clock of the stages: the processor's counter where it is to be trusted, else the kernel's clock."""

import os
import random
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fd_postproc import _core
from fd_postproc.fastdeploy.engine.results._results import Stages
from tests.lib.kernel_emulation import compiler
from tests.lib.paths import ROOT

SECOND = 10**9
GHZ = 3
START = 50 * SECOND

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("ticks") / "ticks")
    source = str(ROOT / "tests" / "lib" / "ticks.c")
    subprocess.run([*compiler(), "-O2", "-Wall", "-Werror", f"-I{ROOT}", source, "-o", path], check=True)
    return path


def said(program, moments, *, is_steady=True):
    """For each moment (counter, clock, ticks between readings): the time said, whether by the clock."""
    lines = "".join(f"{ticks % 2**64} {ns} {gap}\n" for ticks, ns, gap in moments)
    done = subprocess.run(
        [program, str(int(is_steady))], input=lines, capture_output=True, text=True, check=True
    )
    return [(int(ns), looks == "1") for ns, looks in (line.split() for line in done.stdout.splitlines())]


def errors(found, moments):
    return [abs(ns - expected) for (ns, _), (_, expected, _) in zip(found, moments, strict=True)]


def steady(*seconds, first=10**6, gap=60):
    """Moments of a counter that is as fast as ever."""
    return [(first + round(GHZ * SECOND * at), START + round(SECOND * at), gap) for at in seconds]


@needs_compiler
def test_the_clock_is_asked_until_two_measurements_agree_and_then_once_a_second(program):
    measuring, trusted, again = [0, 0.05, 0.11, 0.15, 0.22], [0.23, 0.5, 1.0, 1.215], [1.225, 1.3, 2.22, 2.24]
    moments = steady(*measuring, *trusted, *again)
    found = said(program, moments)
    assert [by_clock for _, by_clock in found] == [True] * 5 + [False] * 4 + [True, False, False, True]
    assert max(errors(found, moments)) <= 100


@needs_compiler
def test_a_counter_that_the_kernel_does_not_use_is_never_used(program):
    moments = [(7 * n * n, START + n * SECOND // 100, 60) for n in range(1000)]
    assert said(program, moments, is_steady=False) == [(ns, True) for _, ns, _ in moments]


@needs_compiler
def test_it_is_as_far_off_as_the_pace_has_changed(program):
    """A clock that is slewed by up to 400 ppm, another rate every second, as NTP may."""
    generator = random.Random(5)
    moments, ticks, now = [], 10**6, float(START)
    for n in range(100_000):
        ppm = 400 * (-1) ** (n // 10_000)
        passed = generator.uniform(0.01e6, 0.2e6)
        ticks, now = ticks + round(GHZ * passed), now + passed * (1 + ppm * 1e-6)
        moments.append((ticks, round(now), 60))
    found = said(program, moments)
    assert sum(by_clock for _, by_clock in found[10_000:]) < 40
    assert max(errors(found, moments)) <= 1_100_000  # 1,000 ppm of a second
    assert [ns for ns, _ in found] == sorted(ns for ns, _ in found)


@needs_compiler
@pytest.mark.parametrize("first", [1, 2**63 - 10**9, 2**64 - 10**9])
def test_a_counter_that_wraps(program, first):
    moments = steady(*(n / 50 for n in range(200)), first=first)
    found = said(program, moments)
    assert max(errors(found, moments)) <= 100
    assert not found[150][1]


@needs_compiler
def test_a_counter_that_was_set_back(program):
    """A machine that was suspended, or moved to another."""
    moments = steady(*(n / 20 for n in range(20)))
    moments += [(ticks - 10**6, ns + SECOND, gap) for ticks, ns, gap in moments]
    found = said(program, moments)
    assert max(errors(found, moments)) <= 100
    assert [by_clock for _, by_clock in found[18:24]] == [False, False, True, True, True, True]
    assert not found[-1][1]


@needs_compiler
def test_a_counter_that_stands_still_is_not_believed(program):
    moments = [(10**6, START + n * SECOND // 5, 0) for n in range(40)]
    assert said(program, moments) == [(ns, True) for _, ns, _ in moments]


@needs_compiler
def test_a_counter_with_another_pace_is_measured_anew(program):
    before = steady(*(n / 20 for n in range(60)))
    ticks, ns, _ = before[-1]
    after = [(ticks + n * SECOND // 10, ns + n * SECOND // 20, 60) for n in range(1, 100)]  # 2 GHz
    found = said(program, before + after)
    assert [ns for ns, _ in found] == sorted(ns for ns, _ in found)
    off = errors(found, before + after)
    assert max(off) <= SECOND // 2  # until it is noticed, within a second
    assert max(off[60 + 40 :]) <= 200
    assert sum(by_clock for _, by_clock in found[-40:]) <= 4


@needs_compiler
def test_a_measurement_that_was_interrupted_is_none(program):
    """The thread was away between two readings of the counter: what was it at the clock's time?"""
    moments = [(ticks, ns, 10**6) for ticks, ns, _ in steady(*(n / 10 for n in range(50)))]
    assert said(program, moments) == [(ns, True) for _, ns, _ in moments]


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_time_never_goes_back_whatever_the_counter_does(program, data):
    numbers = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 10**8), st.integers(0, 30_000)))
    now, moments = START, []
    for ticks, passed, gap in data.draw(numbers):
        now += passed
        moments.append((ticks, now, gap))
    found = [ns for ns, _ in said(program, moments)]
    assert found == sorted(found)


def test_stages_go_by_time_monotonic():
    """Whatever this machine's clock is made of; the counter is in use after two tenths of a second."""
    stages, end = Stages(), time.monotonic() + 0.5
    while (before := time.monotonic()) < end:
        stages.begin()
        assert before - 1e-3 <= stages.clock <= time.monotonic() + 1e-3


def test_what_the_kernel_makes_its_clock_of():
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    if os.path.exists(path):
        with open(path) as file:
            assert _core._clock_source() == file.read().strip() != ""
    else:
        assert _core._clock_source() == ""
