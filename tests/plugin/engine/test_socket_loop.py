"""The loop that receives FastDeploy's objects: a real socket, damaged messages, recorded steps."""

import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from fd_postproc.explain.findings import findings
from fd_postproc.explain.timeline import Picture
from fd_postproc.flight import reading
from fd_postproc.flight.codes import Kind
from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.waiting import until

pytestmark = pytest.mark.framework

SHARED = "/dev/shm"


@pytest.fixture
def running(receiving):
    """A processor that receives from a real socket, and what one puts into it."""
    made = receiving("topk", 4)
    made.replay = imported("tests.lib.stream_replay")

    def steps(number):
        until(lambda: len(made.put) >= number)
        assert len(made.put) == number
        return made.put[-1]

    made.steps = steps
    return made


def rows(replay, tokens, columns):
    ids = [[token, *range(100, 99 + columns)] for token in tokens]
    scores = [[-0.5 * k for k in range(columns)] for _ in tokens]
    return replay.tensors({"ids": ids, "scores": scores, "ranks": [1] * len(tokens)})


def step(replay, tokens, columns=3):
    tensor = imported("paddle").to_tensor(np.array(tokens, "int64"))
    return replay.build(tensor, logprobs=rows(replay, tokens, columns))


def shared_files():
    return {name for name in os.listdir(SHARED) if name.startswith(f"paddle_{os.getpid()}_")}


def test_steps_through_a_real_socket(running):
    before = shared_files()
    for number, columns in enumerate((3, 21, 50), 1):
        tokens = [10 * number + slot for slot in range(4)]
        running.send(running.replay.message(step(running.replay, tokens, columns)))
        results = running.steps(number)
        assert [result["outputs"]["token_ids"] for result in results] == [[token] for token in tokens]
        assert [len(result["outputs"]["top_logprobs"][0][0]) for result in results] == [columns] * 4
    assert running.processor.counters.steps == 3
    assert shared_files() <= before


def test_the_flight_recorder_tells_of_them(running):
    """Steps, first tokens and ends, what is refused; no step is in hand afterwards."""
    for tokens in ([5, 6, 7, 8], [5, 6, 7, 2]):
        running.send(running.replay.message(step(running.replay, tokens)))
    running.steps(2)
    running.send(b"not a pickle")
    running.send(running.replay.message(step(running.replay, [9, 10, 11])))
    running.steps(3)
    path = running.processor.parts.journal.recorder.path
    until(lambda: reading.read(path).busy_since is None)
    entries = reading.read(path).entries
    assert [entry.live for entry in entries if isinstance(entry, reading.StepEntry)] == [4, 4, 3]
    events = [entry.kind for entry in entries if isinstance(entry, reading.Event)]
    assert [events.count(kind) for kind in (Kind.BEGAN, Kind.ENDED, Kind.REFUSED)] == [4, 1, 1]
    running.processor.stop(60)
    assert running.processor.parts.socket.failed(OSError()) == (None, None)  # of what a stop has closed
    flight = reading.read(path)
    assert [one.code for one in findings(Picture(flight, reading.now() + 60.0))] == ["malformed"]


def hostile():
    return [
        b"\x80",
        b"not a pickle",
        b"\x80\x04.",
        pickle.dumps(None),
        pickle.dumps({"__meta": 3, "data": []}),
        pickle.dumps({"__meta": {"send_ts": "noon"}, "data": []}),
        pickle.dumps([1, None, "a"]),
        pickle.dumps([SimpleNamespace(batch_id=7)]),
        pickle.dumps({"data": []}),
        b"cnowhere\nnothing\n.",
        b"\x80\x04\x8c\x28paddle.incubate.multiprocessing.reductions\x94.",
        b"(" * 100_000,
        pickle.dumps([])[:-1],
    ]


def test_damaged_messages_never_end_the_thread(running):
    """Each is counted, and the next step comes through."""
    for content in hostile():
        running.send(content)
    good = running.replay.message(step(running.replay, [5, 6, 7, 8]))
    for cut in range(1, len(good), 97):
        running.send(good[:cut])
    running.send(running.replay.message(step(running.replay, [5, 6, 7, 8])))
    results = until(lambda: next(filter(None, running.put), None))  # the first that are not none
    assert [result["request_id"] for result in results] == ["r0", "r1", "r2", "r3"]
    counters = running.processor.counters
    assert counters.malformed + counters.lost_steps >= len(hostile()) + len(good) // 97 - 2


def test_a_message_whose_tensors_are_gone_is_refused(running):
    """FastDeploy's unpickling raises; the next step comes through."""
    before = shared_files()
    content = running.replay.message(step(running.replay, [5, 6, 7, 8]))
    for name in shared_files() - before:
        os.unlink(f"{SHARED}/{name}")
    running.send(content)
    running.send(running.replay.message(step(running.replay, [9, 10, 11, 12])))
    results = running.steps(1)
    assert [result["outputs"]["token_ids"] for result in results] == [[9], [10], [11], [12]]
    assert running.processor.counters.malformed == 1


# ---- Recorded steps: golden_streams/README.md ------------------------------------------------------------


@pytest.fixture(scope="module")
def replay():
    return imported("tests.lib.stream_replay")


def names(replay, every):
    """Traces without drafts, or every so-manieth of them."""
    return [name for name in replay.traces() if name != replay.SPECULATIVE][::every]


def some(every):
    """Every so-manieth trace in the suite, all of them nightly."""
    return pytest.mark.parametrize("every", [every, pytest.param(1, marks=pytest.mark.nightly)])


@some(8)
def test_our_class_does_what_is_right(replay, every):
    """What FastDeploy's did, or what is written down where it loses something: of those traces every one."""
    ours, chosen = plugin_class(), dict.fromkeys((*names(replay, every), *replay.outcomes()))
    found = {name: replay.wrong_on(ours, name, replay.one_message) for name in chosen}
    assert {name: lines for name, (lines, _) in found.items() if lines} == {}
    assert sum(compared for _, compared in found.values()) > 440 // every * 0.8


@pytest.mark.parametrize(
    ("name", "refused"),
    [("v1_h_receive_fails_first", 0), ("v1_h_receive_fails_later", 0), ("v1_h_odd_payloads", 2)],
)
def test_what_cannot_be_received_ends_nothing_and_is_counted(replay, name, refused):
    with replay.StreamReplay(replay.traces()[name], plugin_class(), replay.one_message) as replayed:
        for _ in replayed.steps():
            pass
        assert replayed.processor.counters.malformed == refused
