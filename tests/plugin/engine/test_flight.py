"""What the engine side puts into its flight recorder's file, and what that alone says of real faults."""

import functools
import operator
import os
import signal
from unittest import mock

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.explain.findings import findings
from fd_postproc.explain.story import story_of, told
from fd_postproc.explain.timeline import Picture
from fd_postproc.fastdeploy.engine.lifecycle import node_of
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import End, Kind, request_hash
from fd_postproc.flight.reading import Event, Live, MessageEntry, QueueEntry, StepEntry
from tests.lib.children import forked, in_a_child
from tests.lib.quiet import imported
from tests.lib.rig import END, Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework


@pytest.fixture
def rig(started):
    """A function that makes a rig whose token thread runs."""
    return functools.partial(started, "spec_topk")


def flight(rig):
    return reading.read(rig.processor.parts.journal.recorder.path)


def events(rig, *kinds):
    return [entry for entry in of(rig, Event) if entry.kind in kinds]


def of(rig, kind):
    return [entry for entry in flight(rig).entries if isinstance(entry, kind)]


def test_steps_and_requests(rig):
    rig = rig()
    rig.send({0: [50, 51], 1: [52]}, {0: [53], 1: []}, {0: [54, END], 1: [55]})
    until(lambda: len(of(rig, StepEntry)) == 3)
    steps = of(rig, StepEntry)
    assert [step.frame for step in steps] == [0, 1, 2]
    assert [(step.batch, step.rows, step.live, step.channel) for step in steps] == [
        (2, 3, 2, "spec_topk"), (2, 1, 1, "spec_topk"), (2, 3, 2, "spec_topk"),
    ]  # fmt: skip
    assert [live.slots for live in of(rig, Live)] == [{0, 1}, {0}, {0, 1}]
    assert len({step.sum for step in steps}) == 3
    assert all(0 < step.build < 10 and 0 <= step.put < 10 for step in steps)
    a, b = request_hash("a"), request_hash("b")
    began = events(rig, Kind.BEGAN)
    assert [(one.slot, one.numbers[:2]) for one in began] == [(0, (a, 7)), (1, (b, 7))]
    assert all(1_000_000 < one.numbers[2] < 60_000_000 for one in began)  # it arrived two seconds ago
    (end,) = events(rig, Kind.ENDED)
    assert (end.slot, end.numbers[:3]) == (0, (a, 5, End.TOKEN))
    until(lambda: flight(rig).busy_since is None)
    rig.close()
    assert events(rig, Kind.CLOSED)
    assert not events(rig, Kind.QUEUE_REMOVED)  # it removes its queue itself


def test_the_file_says_which_of_several_engines_it_is_of(started):
    assert flight(started()).node == ""
    one = started("spec_topk", splitwise_role="decode")
    assert flight(one).node == "decode node"
    cfg = one.processor.cfg
    cfg.parallel_config.data_parallel_size, cfg.parallel_config.local_data_parallel_id = 2, 1
    assert node_of(cfg) == "decode node, rank 1"
    cfg.scheduler_config.splitwise_role = "mixed"
    assert node_of(cfg) == "rank 1"


@each("kind", [Kind.ABORTED, Kind.PREEMPTED])
def test_a_request_that_the_worker_lets_go_was_aborted_or_preempted_never_both(started, kind):
    rig = started()
    rig.send({0: [50], 1: [51]})
    until(lambda: len(of(rig, StepEntry)) == 1)
    aborted, preempted = rig.manager.to_be_aborted_req_id_set, rig.manager.to_be_rescheduled_request_id_set
    (aborted if kind == Kind.ABORTED else preempted).add("a")
    rig.send({0: -9, 1: [52]})
    until(lambda: len(of(rig, StepEntry)) == 2)
    assert [event.kind for event in events(rig, Kind.ABORTED, Kind.PREEMPTED)] == [kind]


def test_the_sum_tells_steps_apart_and_is_no_ones_elses(rig):
    sums = []
    for _ in range(2):  # one after the other: two token threads on one queue would take each other's messages
        one = rig()
        for token in (51, 51, 52):
            one.processor.parts.steps.process(one.message({0: [50], 1: [token]}))
        sums.append([step.sum for step in of(one, StepEntry)])
        one.close()
    (a, b, c), (d, _, _) = sums
    assert a == b != c
    assert a != d


def test_a_refused_message(started):
    rig = started()
    sysv_ipc.MessageQueue(queues.locate("plain")).send(b"\xff" * 100, type=1)
    (one,) = until(lambda: events(rig, Kind.REFUSED))
    assert one.text in ("batch", "length")
    until(lambda: flight(rig).busy_since is None)


@each(
    "owner, name, error, kind",
    [
        ("processor.parts.pairing", "postprocess", MemoryError, Kind.LOST),
        ("processor.parts.requests", "new_result", KeyError, Kind.FAILED),
        ("sink", "put_results", OSError, Kind.UNDELIVERED),
    ],
)
def test_what_raises_is_told_by_its_type_and_place(rig, owner, name, error, kind):
    rig = rig()
    with mock.patch.object(type(operator.attrgetter(owner)(rig)), name, side_effect=error("a user's text")):
        rig.send({0: [50]})
        (one, *_) = until(lambda: events(rig, kind))
    assert one.text.startswith(f"{error.__name__} in ")
    assert "user" not in one.text
    if kind == Kind.FAILED:
        assert (one.slot, one.numbers[0]) == (0, request_hash("a"))
    until(lambda: flight(rig).busy_since is None)


def test_a_step_in_hand_is_seen(rig):
    rig = rig()
    seen = []
    rig.sink.put_results = lambda _: seen.append(flight(rig).busy_since)
    rig.send({0: [50]})
    until(lambda: seen)
    assert 0 <= reading.now() - seen[0] < 60
    until(lambda: flight(rig).busy_since is None)


def test_a_queue_that_is_removed_and_made_again(rig):
    rig = rig()
    first = rig.processor.parts.queue.receiver.msqid
    rig.send({0: [50]})
    until(lambda: of(rig, StepEntry))
    queues.remove_queue(first)
    until(lambda: len(events(rig, Kind.QUEUE_MADE)) == 2)
    kinds = (Kind.QUEUE_MADE, Kind.QUEUE_REMOVED)
    made, removed, again = events(rig, *kinds)
    assert made.numbers[0] == removed.numbers[0] == first != again.numbers[0]


def test_a_queue_that_cannot_be_used(rig, monkeypatch):
    rig = rig()
    rig.queue_refuses(monkeypatch)
    rig.send({0: [50]})
    (one, *_) = until(lambda: events(rig, Kind.QUEUE_ERROR))
    assert (one.numbers[0], one.text) == (13, "QueueError")


def test_the_queue_is_looked_at_and_a_request_that_has_no_token_yet_is_known(rig):
    rig = rig()
    rig.processor.parts.recording.look()
    assert len(events(rig, Kind.SEATED)) == 2
    assert not events(rig, Kind.BEGAN)
    rig.send({0: [50]})
    looks = until(lambda: [one for one in of(rig, QueueEntry) if one.last_sender])
    assert looks[-1].max_bytes > 0
    assert looks[-1].msgmax > 0
    assert looks[-1].running == 2
    assert looks[-1].state in "RSD"
    assert looks[-1].last_sender == os.getpid()


def test_frames_that_are_missing(rig):
    rig = rig()
    until(lambda: rig.processor.parts.queue.receiver is not None)
    received = {**rig.processor.counters.received(), "missing": 3}
    with mock.patch.object(rig.processor.counters, "received", return_value=received):
        rig.processor.parts.recording.look()
        rig.processor.parts.recording.look()
    (one,) = events(rig, Kind.MISSING)
    assert one.numbers[0] == 3


def test_messages_are_kept_if_that_is_wanted(rig, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_TOKENS", "1")
    rig = rig()
    sent = rig.message({0: [50, 51], 1: [52]})
    with fp.Sender("spec_topk", dialect="packed") as sender:
        sender.send(sent)
    sysv_ipc.MessageQueue(queues.locate("spec_topk")).send(b"\xff" * 99, type=1)
    kept, refused = until(lambda: len(of(rig, MessageEntry)) == 2 and of(rig, MessageEntry))
    assert fp.decode(kept.payload, "spec_topk", mtype=kept.mtype).tolists() == sent.tolists()
    assert (refused.mtype, refused.payload) == (1, b"\xff" * 99)


def test_no_token_is_in_the_file_otherwise(started):
    rig = started()
    token = 0x51525354
    rig.send({0: [token]}, dialect="packed")
    until(lambda: of(rig, StepEntry))
    (step,) = of(rig, StepEntry)
    assert (step.frame, step.batch, step.rows, step.channel) == (None, 1, 1, "plain")
    with open(rig.processor.parts.journal.recorder.path, "rb") as file:
        assert token.to_bytes(4, "little") not in file.read()


# ---- Faults that really happen -----------------------------------------------------------------------------


@pytest.fixture
def stepped(rig):
    """A function that makes a rig whose token thread runs, and has processed a step."""

    def make():
        made = rig()
        made.send({0: [50], 1: [51]})
        until(lambda: of(made, StepEntry))
        return made

    return make


def picture(rig, later=0.0):
    """As another process would see it, some seconds later, in which somebody has looked and no step came."""
    read = flight(rig)
    looks = [entry for entry in read.entries if isinstance(entry, QueueEntry)]
    if later and looks:
        read.entries.append(looks[-1]._replace(at=reading.now() + later))
    object.__setattr__(read, "writer", os.getpid())  # a process does not see its own lock
    return Picture(read, reading.now() + later)


def codes(rig, later=0.0):
    return {one.code for one in findings(picture(rig, later))}


def a_sender(rig, *steps):
    """A process that has sent steps, and lives."""

    def send():
        rig.send(*steps)
        signal.pause()

    before = rig.processor.counters.steps
    child = forked(send)
    until(lambda: rig.processor.counters.steps == before + len(steps))
    return child


def test_a_worker_that_is_killed(stepped):
    rig = stepped()
    rig.processor.parts.recording.look()
    assert codes(rig) == set()
    child = a_sender(rig, {0: [60]}, {0: [61]})
    rig.processor.parts.recording.look()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    def story():  # a look that the engine's thread began before the end may be written behind ours
        rig.processor.parts.recording.look()
        now = picture(rig, later=60.0)
        return " ".join(told(now, story_of(now, "a")))

    until(lambda: f"process {child}, which sent the last step, is gone" in story())
    until(lambda: codes(rig) == {"worker"})
    assert "It has no end" in story()


def test_a_sender_that_dies_in_the_middle_of_a_frame(default_limits, stepped):
    default_limits("msgmax", 200)
    rig = stepped()
    whole = fp.encode(rig.message({0: [1, 2, 3], 1: [4, 5, 6]}, columns=9), "compact")
    payload = bytearray(whole[:200])
    payload[56:60] = (0).to_bytes(2, "little") + (2).to_bytes(2, "little")  # piece 0 of 2
    sysv_ipc.MessageQueue(queues.locate("spec_topk")).send(bytes(payload), type=2)
    until(lambda: rig.processor.parts.queue.receiver.stats["fragments"] == 1)
    assert codes(rig) == set()  # more may come
    rig.processor.parts.recording.look()
    until(lambda: (rig.processor.parts.recording.look(), codes(rig))[1])
    assert codes(rig) == {"frames"}
    rig.processor.parts.recording.look()
    assert [one.kind for one in picture(rig).events].count(Kind.OPEN) == 1  # however often one looks


def fill(rig):
    with fp.Sender("spec_topk", dialect="compact") as sender:
        while True:
            sender.send(rig.message({0: [60], 1: [61]}), timeout=0.05)


def test_a_plug_in_that_stands_aside(ops_queue, tmp_path, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    activation = imported("fd_postproc.fastdeploy.engine.activation")
    with mock.patch.object(
        activation, "decide", return_value=activation.Decision(False, "planted by a test")
    ):
        rig = Rig("spec_topk", ["a"])

    def judge():
        (path,) = files.listed()
        picture = Picture(reading.read(path), reading.now())
        (found,) = findings(picture)
        assert picture.is_alive, "its service runs on, with FastDeploy's own class"
        assert found.code == "fell-back"
        assert "planted by a test" in found.text

    in_a_child(judge)  # not here: a process that closes its own file has no lock on it any more
    del rig


def test_a_step_that_hangs_and_a_queue_that_fills(stepped):
    rig = stepped()
    with rig.processor.health_lock:  # which the token thread takes at every step
        with pytest.raises(fp.QueueTimeout):
            fill(rig)
        rig.processor.parts.recording.look()
        found = codes(rig, later=6.0)
    assert {"step", "queue-full"} <= found


def test_another_reader_of_the_queue(stepped):
    rig = stepped()

    def read():
        receiver = fp.Receiver("spec_topk")
        with fp.Sender("spec_topk", dialect="compact") as sender:
            for _ in range(500):
                sender.send(rig.message({0: [60]}))
                if receiver.receive(0) is not None:
                    os._exit(0)
        os._exit(1)

    with rig.processor.health_lock:  # so that it is the other one who gets something
        rig.send({0: [60]})
        until(lambda: rig.processor.parts.journal.recorder.ring is not None)
        child = forked(read)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rig.processor.parts.recording.look()
    assert "two-readers" in codes(rig)


def test_an_engine_that_is_killed_in_a_step(ops_queue, tmp_path, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))

    def engine():
        rig = Rig("spec_topk", ["a"])
        rig.start()
        rig.send({0: [50]}, {0: [51]})
        until(lambda: rig.processor.counters.steps == 2)
        rig.sink.put_results = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        rig.send({0: [52]})
        signal.pause()

    os.waitpid(forked(engine), 0)
    (path,) = files.listed()
    flight = reading.read(path)
    assert flight.writer is None
    assert [entry.frame for entry in flight.entries if isinstance(entry, StepEntry)] == [0, 1]
    (found,) = findings(Picture(flight, reading.now()))
    assert found.code == "engine"
    assert "in the middle of a step" in found.text
