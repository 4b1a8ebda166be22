"""Which side a fault is of: each rule of evidence of `fd_postproc.faults`, beside what only looks like it."""

import pytest

from fd_postproc.explain.timeline import Picture
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.reading import Live
from tests.lib.flight_entries import codes, event, flight, found, look, looks, steady, step

BEFORE = [*steady(200), *looks(100.5, 101.5)]
TWO = [event(99.0, Kind.BEGAN, 6, slot=0), event(99.0, Kind.BEGAN, 7, slot=1), Live(99.5, frozenset({0, 1}))]


def gap(*entries):
    return Picture(flight(*entries), 120.0).longest_gaps()[0]


def test_an_engine_that_was_stopped_is_no_silent_worker():
    """Nothing came for eight seconds, and nothing was looked at: the worker is as it was."""
    entries = [*BEFORE, step(110.0, 200, receive=7.9), *steady(50, 110.01), *looks(110.1, 111.1)]
    (one,) = found(*entries, now=111.2)
    assert (one.code, one.at) == ("frozen", pytest.approx(101.99))
    assert "lived and recorded nothing for 8.0 s" in one.text
    assert "it was stopped" in one.text
    assert gap(*entries).side == "engine"


def test_the_same_silence_with_looks_is_the_workers():
    entries = [*BEFORE, *looks(102.5, 109.5), step(110.0, 200, receive=7.9), *looks(110.1, 111.1)]
    assert codes(entries, 111.2) == []
    assert gap(*entries).side == "worker"
    assert codes([*BEFORE, *looks(102.5, 109.5)], 109.6) == ["silent"]


def test_messages_that_wait_are_the_engines():
    entries = [*BEFORE, *looks(102.5, 109.5, messages=9), step(110.0, 200, receive=7.9), look(110.1)]
    assert gap(*entries).side == "engine"
    assert codes([*BEFORE, *looks(102.5, 109.5, messages=9)], 109.6) == []


def test_nothing_is_silent_while_the_engine_does_not_look():
    assert codes(BEFORE, 120.0) == ["frozen"]
    assert codes(BEFORE, 105.0) == []


def test_the_end_of_the_token_thread_is_no_frozen_process():
    """The thread that looks ends with it."""
    entries = [*BEFORE, event(102.0, Kind.UNHEALTHY, text="thread: the token thread has ended")]
    assert codes(entries, 130.0) == ["thread"]


def test_a_thread_without_a_processor_is_no_frozen_process():
    wait = [event(108.0 + k, Kind.CPU, 9 * 10**8, 10**7, 5, 0, 10**9) for k in range(2)]
    entries = [*BEFORE, event(107.0, Kind.CPU, 5 * 10**9, 10**7, 5, 0, 5 * 10**9), *wait]
    (one,) = found(*entries, now=109.1)
    assert one.code == "no-cpu"
    assert "SCHED_IDLE" in one.text


@pytest.mark.parametrize(
    ("policy", "nice", "words"), [(0, 10, "nice value is 10"), (0, 0, "more work than processors")]
)
def test_why_there_is_no_processor(policy, nice, words):
    waits = [event(103.0 + k, Kind.CPU, 8 * 10**8, 10**7, policy, nice, 10**9) for k in range(6)]
    (one,) = found(*BEFORE, *waits, now=108.5)
    assert one.code == "no-cpu"
    assert words in one.text
    assert codes([*BEFORE, *waits[:3]], 105.5) == []  # for three seconds only


def test_a_stop_of_a_moment_is_none():
    """A debugger, or py-spy, stops a process for as long as it reads its memory."""
    assert codes([*BEFORE, look(102.5, state="t")], 103.0) == []
    assert codes([*BEFORE, *steady(900, 102.0), *looks(102.5, 109.5, state="t")], 110.5) == []


def test_another_process_that_sent_one_message_and_ended_is_no_dead_worker():
    """Such as a replay: the worker's next step is here at once."""
    entries = [*steady(400), look(101.0), look(102.0, last_sender=51, state=""), look(103.0)]
    assert "worker" not in codes(entries, 103.5)
    assert "worker" in codes([*steady(), look(101.0), look(102.5, last_sender=51, state="")], 103.5)


def test_two_packed_workers():
    """No numbers tell them apart: the kernel's last sender does, when it comes back again and again."""
    pids = [50, 51, 50, 50, 51, 50]
    entries = [*(step(100 + k / 100) for k in range(700))]
    entries += [look(100.5 + k, last_sender=pid) for k, pid in enumerate(pids)]
    (one,) = found(*entries, now=107.0)
    assert one.code == "two-senders"
    assert "50 and 51" in one.text
    one_of_them = [look(100.5 + k, last_sender=pid) for k, pid in enumerate([50, 51, 51, 51, 51, 51])]
    assert codes([*entries[:700], *one_of_them], 107.0) == ["other-sender"]


def test_two_dialects_in_turn_are_two_senders():
    entries = [step(100 + k / 100, k if k % 2 else None) for k in range(100)]
    assert codes([*entries, look(100.9)], 101.0) == ["two-senders"]


def test_a_mode_that_keeps_the_sender_out():
    silent = [*steady(200), *looks(100.5, 109.5, ticks=5)]
    late = event(102.1, Kind.ACCESS, 0o600, 0, 0, 50, 65534)
    assert codes([*silent, late], 109.6) == ["silent", "permission"]
    first = event(100.2, Kind.ACCESS, 0o600, 0, 0, 50, 0)  # root's
    assert codes([*BEFORE, first], 102.2) == []
    for mode in (0o620, 0o602, 0o660):
        assert codes([*BEFORE, event(102.1, Kind.ACCESS, mode, 0, 0, 50, 65534)], 102.2) == []
    assert codes([*BEFORE, event(102.1, Kind.ACCESS, 0o400, 7, 0, 50, 7)], 102.2) == ["permission"]


# ---- requests without tokens ---------------------------------------------------------------------------


def test_a_batch_for_half_of_the_requests():
    begun = [event(99.0, Kind.BEGAN, 6 + slot, slot=slot) for slot in range(8)]
    both = [*begun, Live(99.1, frozenset(range(8))), *steady(100, batch=8), Live(101.0, frozenset(range(4)))]
    (one,) = found(*both, *steady(700, 101.01, batch=4), now=108.1)
    assert (one.severity, one.code) == ("error", "starved")
    assert "4 requests get no tokens: messages have 4 requests" in one.text
    assert "slots 4, 5, 6, 7" in one.text
    assert codes([*both, *steady(300, 101.01, batch=4)], 104.1) == []  # for three seconds


def test_a_request_that_the_worker_leaves_out():
    entries = [
        *TWO,
        *steady(100, batch=4),
        Live(101.0, frozenset({0})),
        *steady(700, 101.01, live=1, batch=4),
    ]
    (one,) = found(*entries, now=108.1)
    assert (one.severity, one.code) == ("warning", "starved")
    prefill = event(101.0, Kind.SEATED, 9, slot=2)
    assert codes([*entries, prefill], 108.1) == ["no-first-token"]


def test_no_token_in_any_step():
    entries = [*TWO, *steady(100), Live(101.0, frozenset()), *steady(700, 101.01, live=0)]
    (one,) = found(*entries, now=108.1)
    assert (one.severity, one.code) == ("error", "empty")
    assert codes([*entries, event(101.0, Kind.SEATED, 9, slot=1)], 108.1) == ["no-first-token"]
    ended = [event(101.0, Kind.ENDED, 6 + slot, slot=slot) for slot in (0, 1)]
    assert codes([*entries, *ended], 108.1) == []


def test_a_preempted_request_is_not_starved():
    entries = [*TWO, *steady(100), event(101.0, Kind.PREEMPTED, 7, slot=1), Live(101.0, frozenset({0}))]
    entries += [event(101.5, Kind.SEATED, 7, slot=1), *steady(700, 101.01)]
    assert codes(entries, 108.1) == []


# ---- the health's own words ----------------------------------------------------------------------------


def test_what_the_health_said_is_told_with_its_word():
    said = (
        event(103.0, Kind.UNHEALTHY, text="silent: it has sent nothing"),
        event(109.0, Kind.HEALTHY),
    )
    (one,) = found(*BEFORE, *said, *steady(9, 110.0), *looks(102.5, 110.5), now=111.0)
    assert (one.code, one.text) == ("silent", "it has sent nothing; healthy again after 6.0 s")


def test_what_is_found_is_not_said_twice():
    said = event(108.0, Kind.UNHEALTHY, text="silent: the worker has sent nothing")
    assert codes([*BEFORE, *looks(102.5, 109.5), said], 109.6) == ["silent"]
