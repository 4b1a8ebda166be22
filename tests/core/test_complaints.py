"""What is written about something that happens thousands of times a second."""

import os
import random
import re

from hypothesis import given
from hypothesis import strategies as st

from fd_postproc import queues
from fd_postproc.ops.log_throttle import (
    MOST_FIRST,
    SUMMARY_S,
    Backoff,
    Complaints,
    incomplete_text,
    last_sender_text,
)
from tests.lib.doctoring import dead_user


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def complaints():
    clock, lines = Clock(), []
    return Complaints(lines.append, clock), clock, lines


def test_the_first_of_each_kind_is_said_at_once_and_the_rest_summed_up_once_in_a_period():
    told, clock, lines = complaints()
    for kind in "ba" * 3:
        told.tell(kind, f"an {kind}")
    assert lines == ["an b", "an a"]
    told, clock, lines = complaints()
    for n in range(10_000):  # ten periods and a half
        clock.now = 100 + n * SUMMARY_S * 10.5 / 10_000
        told.tell("ab"[n % 3 == 0], f"number {n}")
    assert len(lines) == 2 + 10
    assert lines[2] == f"number 954 (953 times in the last {SUMMARY_S:.0f} s: a 635, b 318)"
    clock.now += SUMMARY_S
    told.flush()
    assert len(lines) == 13
    told.flush()
    assert len(lines) == 13
    told.tell("a", "at once", 7)
    clock.now += SUMMARY_S
    told.flush()
    assert lines[13].startswith("at once (7 times ")


LINE = re.compile(r"[a-h]\d+(?: \((\d+) times in the last (\d+) s: .*\))?")


@given(st.integers(0, 1 << 32))
def test_what_is_said_of_any_events(seed):
    """All are counted; lines are a period apart, but for a few of new kinds; none is said late in silence."""
    draw = random.Random(seed)
    events = [
        (draw.choice("abcdefgh"), draw.choice((0, 0, 0, 0, 1, 4, 11)), draw.random() < 0.1) for _ in range(60)
    ]
    told, clock, lines = complaints()
    named, waiting, last, in_a_row, firsts = set(), [], -SUMMARY_S, 0, 0
    for n, (kind, pause, flushes) in enumerate([*events, *[("a", SUMMARY_S, True)] * 2]):
        clock.now += pause
        silent, before = clock.now - last >= SUMMARY_S, len(lines)
        waiting.append((kind, clock.now))
        told.tell(kind, f"{kind}{n}")
        if flushes:
            told.flush()
        if len(lines) == before:
            assert not silent or len(waiting) > 1
            assert kind in named or firsts >= MOST_FIRST
            continue
        (line,) = lines[before:]
        last, in_a_row = clock.now, 0 if silent else in_a_row + 1
        assert in_a_row <= MOST_FIRST
        assert silent or kind not in named
        times, seconds = LINE.fullmatch(line).groups()
        if times:
            assert int(times) == len(waiting)
            assert int(seconds) >= clock.now - waiting[0][1]
        said = waiting if times else waiting[-1:]
        firsts = 0 if times else firsts + 1
        named |= {kind for kind, _ in said}
        waiting = waiting[: -len(said)]
    assert not waiting


def test_waiting_longer_and_longer():
    clock = Clock()
    backoff = Backoff(0.1, 1.0, quiet=0.6, clock=clock)  # the wait itself is no quiet time
    waits = []
    for _ in range(7):
        waits.append(backoff.failed())
        clock.now += waits[-1]
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    clock.now += 0.7
    assert backoff.failed() == 0.0


def test_who_wrote_last_is_named(queue, monkeypatch):
    monkeypatch.setattr(queues, "_rows", None)  # what the kernel says of every queue: there may be thousands
    queue.send(b"")
    assert f"was process {os.getpid()} (" in last_sender_text(queue.id)
    assert f"was process {os.getpid()} (" in incomplete_text(queue.id, "spec")
    assert f"was process {dead_user(queue.key)} (which has ended)" in last_sender_text(queue.id)


def test_who_wrote_to_a_queue_that_is_gone(queue):
    queue.remove()
    assert last_sender_text(queue.id) == f"queue msqid:{queue.id} is gone"
