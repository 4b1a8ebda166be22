"""Steps in the flight recorder's file: their slots, their sums and their stages."""

import random
import subprocess
import time

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc._core import Attendance
from fd_postproc.explain.timeline import with_slots
from fd_postproc.fastdeploy.engine.results._results import Stages
from fd_postproc.flight import reading
from fd_postproc.flight.codes import Kind
from tests.lib.c_library import compiler
from tests.lib.children import in_a_child
from tests.lib.flights import begun, bytes_of
from tests.lib.paths import ROOT
from tests.lib.rows import each


def recorded_steps(recorder, *steps):
    """What the file says of them, each with the slots that had tokens."""
    stages = Stages()
    stages.ring = recorder.ring
    for step in steps:
        stages.end_receive()
        stages.end_build(None)
        stages.end_put([None] * 3, step)
    return list(with_slots(reading.read(recorder.path)))


@each("batch", [1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 319, 320, 321, 512])
def test_slots_with_tokens_whatever_the_batch(folder, batch):
    generator = random.Random(batch)
    steps, slots = [], []
    for _ in range(20):
        counts = [generator.choice([1, 1, -9]) for _ in range(batch)]
        live = {slot for slot, count in enumerate(counts) if count > 0}
        steps.append(fp.Step.from_arrays("plain", counts, range(len(live))))
        slots.append(live)
    found = recorded_steps(begun(size=1 << 16), *steps)
    assert [live for _, live in found] == slots
    assert [(step.live, step.batch, step.rows) for step, _ in found] == [
        (len(live), batch, len(live)) for live in slots
    ]
    assert all(step.results == 3 and step.receive >= 0 for step, _ in found)


def test_slots_of_a_step_that_has_fewer(folder):
    """What the greater one had beyond is gone, although nothing else has changed."""
    live = {100: {3, 80}, 50: {3}, 65: {3}, 320: {3, 319}}
    batches = [100, 50, 100, 65, 320, 50, 100]
    steps = [
        fp.Step.from_arrays(
            "plain", [1 if slot in live[batch] else -1 for slot in range(batch)], [*live[batch]]
        )
        for batch in batches
    ]
    found = recorded_steps(begun(size=1 << 16), *steps)
    assert [slots for _, slots in found] == [live[batch] for batch in batches]


def test_slots_that_stay_are_told_again_after_a_thousand_steps(folder):
    """So that the ring always has them; and no more often, which would fill it."""
    recorder, step = begun(size=1 << 18), fp.Step.from_arrays("plain", [1, -1, 1], [7, 8])
    found = recorded_steps(recorder, *[step] * 2500)
    data, at = bytes_of(recorder)
    told = [number for number in range(1, 2500 + 10) if data[at(number) + 12] == Kind.LIVE]
    assert told == [1, 1 + 1025, 1 + 2 * 1025]
    assert all(slots == {0, 2} for _, slots in found)


@each("columns", [2, 21])
@each("rows", [20, 64, 300])
def test_the_sum_is_of_the_sampled_tokens_alone(folder, columns, rows):
    """Column 0; the others are candidates."""
    ids = np.arange(rows * columns).reshape(rows, columns)
    zeros = np.zeros((rows, columns), np.float32)
    steps = []
    for at in [None, *range(columns)]:
        changed = ids.copy()
        if at is not None:
            changed[0, at] += 1
        ranks = np.ones(rows, np.int64)
        steps.append(fp.Step.from_arrays("topk", [1] * rows, changed, zeros, ranks))
    first, sampled, *others = [step.sum for step, _ in recorded_steps(begun(size=1 << 16), *steps)]
    assert first != sampled
    assert set(others) == {first}


@each("batch", [1, 16, 31, 32, 33, 64, 100, 128])
def test_the_sum_is_of_every_count_and_token(folder, batch):
    """Equal steps have equal ones, and no two others."""
    counts = [2] * batch
    ids = np.arange(2 * batch)
    others = [fp.Step.from_arrays("spec", counts, ids), fp.Step.from_arrays("spec", counts, ids)]
    for at in range(batch):
        fewer = [*counts[:at], 1, *counts[at + 1 :]]
        others.append(fp.Step.from_arrays("spec", fewer, ids[: sum(fewer)]))
    if 2 * batch <= 128:
        for at in range(2 * batch):
            changed = ids.copy()
            changed[at] += 1
            others.append(fp.Step.from_arrays("spec", counts, changed))
    sums = [step.sum for step, _ in recorded_steps(begun(size=1 << 16), *others)]
    assert sums[0] == sums[1]
    assert len(set(sums)) == len(sums) - 1


def test_of_many_tokens_some_are_summed_over_all_of_the_step(folder):
    counts, ids = [6] * 128, np.arange(6 * 128)
    steps = [fp.Step.from_arrays("spec", counts, ids)]
    for at in range(6 * 128):
        changed = ids.copy()
        changed[at] += 1
        steps.append(fp.Step.from_arrays("spec", counts, changed))
    first, *sums = [step.sum for step, _ in recorded_steps(begun(size=1 << 18), *steps)]
    told = [at for at, one in enumerate(sums) if one != first]
    assert told == list(range(0, 6 * 128, 6))


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_sums_and_slots_are_the_same_without_vector_instructions(tmp_path):
    printed = []
    for n, flags in enumerate(([], ["-U__SSE2__"])):
        program = str(tmp_path / f"sums-{n}")
        source = str(ROOT / "tests" / "lib" / "flight_sums.c")
        subprocess.run([*compiler(), *flags, f"-I{ROOT}", source, "-o", program], check=True)
        printed.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert printed[0] == printed[1]
    lines = [line.split() for line in printed[0].splitlines()]
    assert [line[3:] for line in lines] == [["0", "0"]] * 1101
    assert len({line[1] for line in lines}) == 1101


def test_a_step_says_when_it_was_received_and_is_in_hand_from_then_on(folder, queue, plain_sender):
    """Three stages, and nobody but the Receiver looks at the clock when the first is over."""
    recorder, stages, kept = begun(size=1 << 16), Stages(), []
    receiver = Attendance(fp.Receiver("plain", key=queue.key), 0, recorder.ring, kept.append)
    stages.ring = recorder.ring
    stages.begin()
    time.sleep(0.02)
    plain_sender.send(fp.Step.from_arrays("plain", [1], [7]))
    step = receiver.receive()
    assert kept == [step]
    busy = reading.read(recorder.path).busy_since
    time.sleep(0.04)
    assert time.monotonic() - 10 < busy <= time.monotonic() - 0.04
    stages.end_build(step)
    time.sleep(0.06)
    stages.end_put([None, None], step)
    flight = reading.read(recorder.path)
    assert flight.busy_since is None
    (found,) = [one for one, _ in with_slots(flight)]
    for seconds, told, least in (
        (stages.receive_seconds, found.receive, 0.02),
        (stages.build_seconds, found.build, 0.04),
        (stages.put_seconds, found.put, 0.06),
    ):
        assert least - 1e-3 <= seconds
        assert told == pytest.approx(seconds, rel=1e-6)
    assert stages.receive_seconds < 10
    assert (stages.steps, stages.results, found.results) == (1, 2, 2)
    seconds = stages.receive_seconds
    stages.end_build(step)  # again: it was received long ago
    assert stages.receive_seconds == seconds


def test_a_receiver_in_a_child_marks_nothing_in_its_parents_file(folder, queue, plain_sender):
    recorder = begun()
    receiver = Attendance(fp.Receiver("plain", key=queue.key), ring=recorder.ring)
    plain_sender.send(fp.Step.from_arrays("plain", [1], [7]))
    in_a_child(receiver.receive)
    assert reading.read(recorder.path).busy_since is None
