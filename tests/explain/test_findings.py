"""Each fault is named, by a file in which just that has happened; and nothing is where nothing has."""

import errno

import pytest

from fd_postproc.explain.findings import findings, findings_of_worker
from fd_postproc.explain.story import as_dict, story_of, told
from fd_postproc.explain.timeline import Gap, Picture, latencies
from fd_postproc.flight.codes import End, Kind, request_hash
from fd_postproc.flight.reading import Live
from tests.lib.flight_entries import codes, event, flight, look, looks, steady, step
from tests.lib.rows import each

GOOD = [*steady(), look(100.5), look(101.5)]
DEAD = {"writer": None}
UNUSED = {"running": 0, "last_sender": 0}
CLOSED = event(104.0, Kind.CLOSED)
IDLE_DEATH = [*steady(), look(101.5, running=0), *looks(102.5, 104.0, running=0, state="Z"), CLOSED]
UNUSED_DEATH = [*looks(100.0, 102.0, **UNUSED), *looks(103.0, 104.0, **UNUSED, state=""), CLOSED]
EXAMPLES = {
    "step": ([*GOOD, *looks(102.5, 108.5)], {"busy": 102.0}),
    "engine": (GOOD, DEAD),
    "worker": ([*GOOD, look(102.2, state="")], {}),
    "worker of an idle engine": (IDLE_DEATH, DEAD),
    "worker that has sent nothing": (UNUSED_DEATH, DEAD),
    "worker, seen as FastDeploy ends its engine": ([*IDLE_DEATH[:-2], CLOSED], DEAD),
    "stopped": ([*GOOD, *looks(102.5, 108.5, state="T")], {}),
    "silent": ([*GOOD, *looks(102.5, 111.5)], {}),
    "busy": ([*GOOD, *(look(102.5 + k, ticks=90 * k) for k in range(10))], {}),
    "thread": ([*GOOD, event(101.9, Kind.UNHEALTHY, text="thread: the token thread has ended")], {}),
    "removed": ([*GOOD, event(101.9, Kind.QUEUE_REMOVED, 77)], {}),
    "queue": ([*GOOD, event(101.9, Kind.QUEUE_ERROR, errno.EACCES, text="QueuePermission")], {}),
    "frozen": ([*GOOD, look(102.0)], {}),
    "queue-full": ([*GOOD, look(101.8, messages=163, bytes=16300)], {}),
    "limits-low": ([*(step(100.0 + k / 100) for k in range(200)), *looks(100.5, 111.5)], {}),
    "two-readers": ([*GOOD, look(101.8, last_receiver=99, reader_is_foreign=True)], {}),
    "malformed": ([*GOOD, event(101.9, Kind.REFUSED, 999, 512, -1, text="batch")], {}),
    "frames": ([*GOOD, event(101.9, Kind.INCOMPLETE, 2), event(101.9, Kind.MISSING, 3)], {}),
    "lost-step": ([*GOOD, event(101.9, Kind.LOST, text="ValueError in steps.py:3 (f)")], {}),
    "undelivered": ([*GOOD, event(101.9, Kind.UNDELIVERED, text="OSError in steps.py:3 (f)")], {}),
    "failed-request": ([*GOOD, event(101.9, Kind.FAILED, 1, slot=1, text="KeyError in steps.py:3 (f)")], {}),
    "send-failed": ([event(100.0, Kind.SEND_FAILED, 1, text="too big")], {"side": "worker"}),
    "fell-back": ([event(100.0, Kind.FELL_BACK, text="it differs")], {}),
    "left": ([*GOOD, event(101.9, Kind.LEFT, 5, slot=1)], {}),
}


def test_nothing_went_wrong():
    assert codes(GOOD) == []
    assert codes([*GOOD, event(102.0, Kind.CLOSED)], writer=None) == []
    of_earlier_versions = [event(101.9, 38, 0o600, 0, 0, 5, 0), event(101.9, 39, 10**9, 1, 0, 0, 10**9)]
    assert codes([*GOOD, *of_earlier_versions]) == []


@each("code", EXAMPLES)
def test_a_fault_is_named_and_nothing_else(code):
    entries, options = EXAMPLES[code]
    now = max(102.0, *(entry.at for entry in entries)) + 0.2
    *others, found = findings(Picture(flight(*entries, **options), 106.5 if code == "frozen" else now))
    assert found.code == code.split()[0].strip(",")
    assert found.text
    if code == "frames":  # the numbers of two events
        assert [word for word in found.text.split() if word.isdigit()] == ["2", "3"]
    assert [one.code for one in others] == (["silent"] if code == "limits-low" else [])


SAID = "silent: the worker has sent nothing"
GONE = "worker: process 50 is gone"
THREAD = "thread: the token thread has ended"
REPLAY = {"last_sender": 51, "state": ""}
SILENT = [*GOOD, *looks(102.5, 111.5)]
AT_WORK = "busy: it is at work"
REFUSED = [event(102.0 + k / 10, Kind.REFUSED, 3, 1, -1, text="version") for k in range(80)]
QUIET = {  # entries, the time of the look, options, and what is found
    "nothing went wrong": (GOOD, 102.0, {}, []),
    "it was stopped": ([*GOOD, event(102.0, Kind.CLOSED)], 102.0, {"writer": None}, []),
    "a worker that an idle engine's stop has not ended yet":
        ([*steady(), look(104.0, running=0), CLOSED], 105.0, DEAD, []),
    "a process that cannot be seen, and has sent nothing":
        ([*looks(100.0, 104.0, **UNUSED, state=""), CLOSED], 105.0, DEAD, []),
    "an empty queue is never full": ([*GOOD, look(101.8, max_bytes=64)], 102.0, {}, []),
    "whose messages are refused is not silent":
        ([*steady(), *REFUSED, *looks(100.0, 110.0)], 110.5, {}, ["malformed"]),
    "a step in hand is not stuck at once": (GOOD, 103.0, {"busy": 102.0}, []),
    "a message in hand is the worker's": ([], 106.0, {"side": "worker", "busy": 101.0}, ["queue-full"]),
    "a pause without requests": ([*steady(), *looks(102.0, 131.0, running=0)], 132.0, {}, []),
    "messages that wait are no silence of the worker":
        ([*GOOD, *looks(102.5, 109.5, messages=9)], 109.6, {}, []),
    "a silence": (SILENT, 115.4, {}, ["silent"]),
    "work that ended in a sleep":
        ([*GOOD, *(look(102.5 + k, ticks=90 * min(k, 4)) for k in range(10))], 112.0, {}, ["silent"]),
    "a worker whose children work, as the health knows":
        ([*GOOD, *looks(102.5, 111.5), event(106.5, Kind.UNHEALTHY, text=AT_WORK)], 112.0, {}, ["busy"]),
    "that has hung since":
        ([*GOOD, *looks(102.5, 121.5), event(106.5, Kind.UNHEALTHY, text=AT_WORK),
          event(121, Kind.UNHEALTHY, text=SAID)], 122.0, {}, ["busy", "silent"]),
    "the looks have ended, which is another fault": (SILENT, 115.6, {}, ["frozen"]),
    "whatever is in hand then": (SILENT, 115.6, {"busy": 111.0}, ["frozen"]),
    "the thread that looks ends with the token thread":
        ([*GOOD, event(102.0, Kind.UNHEALTHY, text=THREAD)], 130.0, {}, ["thread"]),
    "a debugger stops a process for a moment": ([*GOOD, look(102.5, state="t")], 103.0, {}, []),
    "a debugger stops it, and it works on":
        ([*GOOD, *steady(900, 102.0), *looks(102.5, 109.5, state="t")], 110.5, {}, []),
    "another process sent one message and ended, such as a replay":
        ([*steady(400), look(101.0), look(102.0, **REPLAY)], 104.5, {}, []),
    "the last sender has ended, and nothing came since":
        ([*steady(), look(101.0), look(102.5, **REPLAY)], 103.5, {}, ["worker"]),
    "what the health said of a dead worker is not said again by each look":
        ([*GOOD, event(104.0, Kind.UNHEALTHY, text=GONE), *looks(102.5, 130.5, state="")], 131.0, {},
         ["worker"]),
    "a silence that the health did not see, long after one that it saw":
        ([*GOOD, event(108.0, Kind.UNHEALTHY, text=SAID), *looks(102.5, 119.5), *steady(9, 120.0),
          *looks(120.5, 129.5)], 129.6, {}, ["silent", "silent"]),
    "what the health said is not said twice":
        ([*GOOD, *looks(102.5, 109.5), event(108.0, Kind.UNHEALTHY, text=SAID)], 109.6, {}, ["silent"]),
}  # fmt: skip


@each("why", QUIET)
def test_what_is_no_fault_or_one_alone(why):
    entries, now, options, found = QUIET[why]
    assert codes(entries, now, **options) == found


PIECES = Kind.OPEN, Kind.INCOMPLETE


def test_who_used_the_queue_in_an_earlier_run_is_no_matter():
    """Until something has come, the kernel tells of processes that have long ended."""
    earlier = {"last_sender": 40, "last_receiver": 41, "reader_is_foreign": True, "state": ""}
    assert codes([look(98.0, **earlier), look(99.0, **earlier), *GOOD]) == []
    found = findings(Picture(flight(*(look(100.0 + n, **earlier) for n in range(9))), 108.5))
    (silent,) = [one for one in found if one.code == "silent"]
    assert {one.code for one in found} == {"silent", "limits-low"}
    assert silent.text.startswith("nothing has come from any process for 8.0 s, while 2 requests run")
    refused = event(97.0, Kind.REFUSED, 3, 1, -1, text="version")
    for came, code in (refused, "malformed"), *((event(97.0, one, 1), "frames") for one in PIECES):
        assert {*codes([came, look(97.5, **earlier), *GOOD])} == {code, "two-readers"}
    assert {*codes([look(97.5, **earlier), *GOOD], overwritten=7)} == {"two-readers"}


def test_a_worker_that_went_twice_is_gone_since_the_second_time():
    entries = [*GOOD, *looks(102.5, 104.5, state=""), *looks(105.5, 107.5), *looks(108.5, 109.5, state="")]
    (found,) = findings(Picture(flight(*entries), 109.6))
    assert (found.code, found.at) == ("worker", 108.5)


def test_a_process_that_died_in_a_step_is_said_to_have():
    (found,) = findings(Picture(flight(*GOOD, writer=None, busy=101.9), 200.0))
    assert "in the middle of a step" in found.text


def test_a_worker_that_ends_with_its_engine_is_no_fault():
    worker = Picture(flight(*steady(), side="worker", writer=None), 102.5)

    def beside(*entries, **options):
        engine = Picture(flight(*GOOD, *entries, **options), 102.5)
        return [one.code for one in findings_of_worker(worker, engine, findings(engine))]

    closed = event(102.0, Kind.CLOSED)
    assert beside(closed, writer=None) == []  # the service was stopped
    assert beside() == ["worker"]  # the engine runs on
    assert beside(writer=None) == ["worker"]  # both were killed
    missed = event(101.8, Kind.UNHEALTHY, text="worker: process 50 is gone")
    assert beside(missed, closed, writer=None) == ["worker"]  # it died, and the service was stopped then


def test_a_silence_may_be_a_long_prefill_for_a_minute():
    for seconds, severity in (30, "warning"), (61, "error"):
        (found,) = findings(Picture(flight(*steady(), *looks(102.0, 102.0 + seconds)), 102.5 + seconds))
        assert (found.severity, found.code) == (severity, "silent")


def test_an_engine_that_was_stopped_is_no_silent_worker():
    """Nothing came for eight seconds, and nothing was looked at: the worker is as it was."""
    entries = [*GOOD, step(110.0, 200, receive=7.9), *steady(50, 110.01), *looks(110.1, 111.1)]
    (one,) = findings(Picture(flight(*entries), 111.2))
    assert (one.code, one.at) == ("frozen", pytest.approx(101.99))
    assert "recorded nothing for 8.0 s" in one.text


def test_what_the_health_said_is_told_with_its_word():
    said = event(103.0, Kind.UNHEALTHY, text="silent: it has sent nothing"), event(109.0, Kind.HEALTHY)
    (one,) = findings(Picture(flight(*GOOD, *said, *steady(9, 110.0), *looks(102.5, 110.5)), 111.0))
    assert (one.code, one.text) == ("silent", "it has sent nothing; healthy again after 6.0 s")
    again = event(111.5, Kind.UNHEALTHY, text="step: stuck"), event(114.5, Kind.HEALTHY)
    found = findings(Picture(flight(*GOOD, *said, *again, *looks(102.5, 115.5)), 116.0))
    assert [one.text.rpartition(" after ")[2] for one in found] == ["6.0 s", "3.0 s"]


# ---- how it went -------------------------------------------------------------------------------------


def test_the_longest_gaps_and_their_side():
    entries = [*steady(50), step(103.0, 50, receive=2.4), *steady(50, 103.01)]
    picture = Picture(flight(*entries, step(107.0, 99, receive=0.1, build=3.0)), 110.0)
    assert [(one.at, one.side) for one in picture.longest_gaps()] == [(107.0, "engine"), (103.0, "worker")]
    assert picture.slowest_steps()[0].at == 107.0
    assert picture.usual_gap == pytest.approx(0.01)

    def side(*entries):
        return Picture(flight(*GOOD, *entries), 120.0).longest_gaps()[0].side

    late = step(110.0, 200, receive=7.9)
    assert side(late, *steady(50, 110.01), *looks(110.1, 111.1)) == "engine"  # no look for 8 s
    assert side(*looks(102.5, 109.5), late, *looks(110.1, 111.1)) == "worker"
    assert side(*looks(102.5, 109.5, messages=9), late, look(110.1)) == "engine"
    last = look(109.5, messages=1)  # it has just come
    assert side(*looks(102.5, 108.5), last, late, *looks(110.1, 111.1)) == "worker"


def test_idle_time_is_no_gap():
    idle = [*steady(), *looks(102.0, 402.0, running=0), step(402.5)]
    assert Picture(flight(*idle), 403.0).longest_gaps() == []
    waits = [*steady(), *looks(102.0, 402.0, running=0, transfers=1), step(402.5)]
    assert len(Picture(flight(*waits), 403.0).longest_gaps()) == 1


def test_a_gap_is_never_negative():
    assert Picture(flight(), 5.0).gaps_of([step(5.0), step(4.0)]) == [Gap(4.0, 0.0, "worker")]


def test_rates_are_of_the_last_seconds():
    rates = Picture(flight(*steady(100), *steady(1001, 1000.0)), 1011.0).rates()
    assert rates["steps_per_second"] == pytest.approx(100)
    assert rates["tokens_per_second"] == pytest.approx(200)


def test_latency_from_the_workers_call():
    sent = [event(100.0 + k, Kind.SENT, k, 500_000_000) for k in range(3)]
    steps = step(99.0, 0), step(101.0, 1), step(102.25, 2), step(109.0, 7)  # the first of an earlier run
    found = latencies(flight(*steps), flight(*sent, side="worker"))
    assert found == pytest.approx([0.5, 0.75])


# ---- a request -----------------------------------------------------------------------------------------

A = request_hash("a")


def lines(*entries, now=200.0, name="a", **options):
    picture = Picture(flight(*entries, **options), now)
    story = story_of(picture, name)
    as_dict(picture, story)
    return story, " ".join(told(picture, story))


def running(n=20):
    return [
        event(99.5, Kind.SEATED, A, slot=3), event(99.999, Kind.BEGAN, A, 70, 1_500_000, slot=3),
        Live(99.9999, frozenset({1, 3})), *steady(n),
    ]  # fmt: skip


def test_a_request_that_ended():
    story, text = lines(*running(), event(100.1895, Kind.ENDED, A, 38, End.TOKEN, slot=3))
    assert len(story.steps) == 20
    assert "1.500 s after it had arrived by the wall clock (70 prompt tokens)" in text
    assert "It had 38 tokens in 20 steps over 0.190 s, usually 10 ms apart." in text
    assert "with an end token" in text


def test_others_steps_are_not_its():
    entries = [*running(10), Live(100.0999, frozenset({1})), *steady(10, 100.1)]
    assert len(lines(*entries)[0].steps) == 10
    ended = event(100.0995, Kind.ENDED, A, 9, End.TOKEN, slot=3)  # its slot is another's afterwards
    assert len(lines(*running(), ended)[0].steps) == 11  # that in which it ended is stamped after its end


def test_gaps_and_their_side():
    entries = [*running(), step(102.0, 20, receive=1.8)]
    story, text = lines(*entries, event(101.9999, Kind.ENDED, A, 21, End.TOKEN, slot=3))
    assert [gap.side for gap in story.gaps] == ["worker"]
    assert "A gap of 1.810 s" in text
    assert "on the worker's side" in text


ENDS = {
    "with an error of the token processor: KeyError": event(100.5, Kind.FAILED, A, slot=3, text="KeyError"),
    "It was aborted": event(100.5, Kind.ABORTED, A, slot=3),
    "left its slot": event(100.5, Kind.LEFT, A, slot=3),
    "It is running.": look(100.5),
}


@each("words, end", ENDS.items())
def test_other_ends(words, end):
    _, text = lines(*running(), end, now=100.6)
    assert words in text
    assert story_of(Picture(flight(*running(), end), 100.6), "b") is None


def test_no_end_because_the_worker_died():
    _, text = lines(*running(), look(100.1), look(101.0, state=""), now=160.0)
    assert "It has no end; its last step was 59.810 s before now." in text
    assert "process 50, which sent the last step, is gone while 2 requests run" in text
    _, text = lines(*running(), look(100.1), look(101.0, state="", running=1), now=160.0)
    assert "is gone while 1 request runs" in text
    before = event(100.05, Kind.QUEUE_REMOVED, 77)  # and steps came since
    _, text = lines(before, *running(), *steady(200, 100.2), look(102.1), now=103.0)
    assert "What went wrong" not in text


def test_it_was_preempted_and_came_back():
    entries = [*running(5), event(100.045, Kind.PREEMPTED, A, slot=3)]
    entries += [event(100.2, Kind.SEATED, A, slot=1), *steady(5, 100.3)]
    story, text = lines(*entries)
    assert len(story.steps) == 10
    assert "It was preempted" in text


def test_no_token_ever_came():
    _, text = lines(event(90.0, Kind.SEATED, A, slot=0), look(199.0, state="S"), now=200.0)
    assert "No token has come for it." in text


def test_a_request_by_the_id_of_the_clients_answer():
    picture = Picture(flight(event(100.0, Kind.SEATED, request_hash("chatcmpl-1_0"), slot=0)), 101.0)
    assert story_of(picture, "chatcmpl-1") == story_of(picture, "chatcmpl-1_0") is not None
    assert story_of(picture, "chatcmpl-1_1") is None
    both = [event(100.0 + n, Kind.SEATED, request_hash("a" + "_0" * n), slot=n) for n in (1, 0)]
    assert lines(*both)[0].events[0].slot == 0  # the one of just that name


def test_its_beginning_was_overwritten():
    entries = [Live(100.0, frozenset({3})), *steady(5), event(100.0395, Kind.ENDED, A, 500, 9, slot=3)]
    story, text = lines(*entries, overwritten=1000)
    assert len(story.steps) == 5
    assert "not in the file any more" in text
    assert "does not know" in text
