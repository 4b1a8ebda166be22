"""What is written about something that happens thousands of times a second."""

import os

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


def test_one_that_comes_now_and_then_is_said():
    told, clock, lines = complaints()
    for n in range(3):
        told.tell("a", f"number {n}")
        clock.now += 3 * SUMMARY_S
    assert lines == ["number 0", "number 1", "number 2"]


def test_many_new_kinds_are_no_way_around_it():
    told, clock, lines = complaints()
    for n in range(50):
        told.tell(str(n), f"kind {n}")
    assert len(lines) == MOST_FIRST
    clock.now += SUMMARY_S
    told.tell("50", "kind 50")
    assert len(lines) == MOST_FIRST + 1


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
