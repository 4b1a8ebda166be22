"""A long step over ZeroMQ in several frames, each made when it can be sent, with results of its own."""

import copy
import pickle
import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.stream_frames import Content, packed
from fd_postproc.fastdeploy.worker import split_frames, stream_builder
from fd_postproc.fastdeploy.worker.split_frames import FramePiece, Runner, cut
from tests.lib.plugged import plugin_class, take
from tests.lib.quiet import imported
from tests.plugin.engine.test_socket_loop import names, some
from tests.reference.streams import open_streamed

pytestmark = pytest.mark.framework


def content(slots, columns, n_rows=None, masks=False, prompts=()):
    rng = np.random.default_rng(slots + columns)
    n_rows = slots if n_rows is None else n_rows
    tokens = rng.integers(-9, 1 << 31, slots)
    ids = rng.integers(0, 1 << 31, (n_rows, columns))
    if columns:
        ids[:, 0] = tokens[:n_rows]
    rows = ids, rng.random((n_rows, columns), np.float32), rng.integers(1, 99, n_rows)
    return Content(
        slots,
        tokens,
        rows if columns else None,
        [rng.integers(0, 99, slot % 4) for slot in range(slots)] if masks else None,
        {
            slot: (np.ones((2, 3), np.int64), np.ones((2, 3), np.float32), np.ones(2, np.int64))
            for slot in prompts
        },
    )


@given(
    st.integers(1, 30), st.integers(0, 9), st.integers(0, 30), st.booleans(),
    st.sets(st.integers(0, 29), max_size=4), st.sampled_from([1, 60, 100, 300, 5000]),
)  # fmt: skip
def test_pieces_are_the_step(slots, columns, n_rows, masks, prompts, room):
    """Every slot is in one of them, in order, and none is longer than it may be but for a slot that is."""
    whole = content(slots, columns, min(n_rows, slots), masks, {slot for slot in prompts if slot < slots})
    limit, split_frames.PIECE_BYTES = split_frames.PIECE_BYTES, room
    try:
        parts = cut(whole)
        sizes = list(split_frames._sizes(whole))
    finally:
        split_frames.PIECE_BYTES = limit
    if sum(sizes) <= room:
        assert parts == [whole]
        return
    again, at, before = open_streamed(packed(whole)), 0, room
    for part in parts:
        told = open_streamed(packed(part))
        assert (told.slots, told.span[0]) == (slots, at)
        here = range(at, at + told.span[1])
        assert told.tokens[here.start : here.stop] == again.tokens[here.start : here.stop]
        if columns:
            assert told.rows == {slot: row for slot, row in again.rows.items() if slot in here}
        if masks:
            assert told.masks == {slot: mask for slot, mask in again.masks.items() if slot in here}
        assert list(told.prompts) == [slot for slot in again.prompts if slot in here]
        assert len(here) == 1 or sum(sizes[here.start : here.stop]) <= room
        assert before + sizes[at] > room  # the one before had no room for this one's first slot
        before = sum(sizes[here.start : here.stop])
        heads = 400 + 8 * slots + 60 * len(told.prompts)
        assert len(packed(part)) <= sum(sizes[here.start : here.stop]) + heads
        at += len(here)
    assert at == slots
    assert len(parts) > 1 or slots == 1


@pytest.fixture
def in_pieces(monkeypatch):
    """The worker's builder, which cuts everything that can be, and what it has put into the queue."""
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/3")
    monkeypatch.setattr(split_frames, "PIECE_BYTES", 1)
    put = queue.Queue()
    monkeypatch.setattr(Runner, "found", classmethod(lambda cls: Runner(put, None)))
    return stream_builder.StreamBuilder(imported("tests.lib.stream_replay").build), put


def deliver(builder, put, lose=()):
    """As `stream_replay.one_message`, for each of a step's frames but those to be lost."""
    replay = imported("tests.lib.stream_replay")

    def messages(replayed, event):
        if "receive_error" in event or "start" in event:
            replay.one_message(replayed, event)
            return
        sent = [replay.payload(event, builder)]
        while not put.empty():
            sent.insert(len(sent) - 1, put.get())
        for number, one in enumerate(sent):
            if number not in lose:
                take(replayed.processor, replay.message(one))

    return messages


def joined(record):
    """With the results of a step together and by request: the end of an aborted one goes ahead of others."""
    record = copy.deepcopy(record)
    results = [result for results in record["put"] for result in results]
    record["put"] = [sorted(results, key=lambda result: result["request_id"])]
    return record


@some(12)
def test_results_of_pieces_are_those_of_the_step(in_pieces, every):
    """Over the recorded traces of FastDeploy 2.6, every slot a frame of its own."""
    (builder, put), ours = in_pieces, plugin_class()
    replay = imported("tests.lib.stream_replay")
    found = {
        name: replay.wrong_on(ours, name, deliver(builder, put), joined, builder=builder)
        for name in names(replay, every)
        if name != "v1_h_put_raises"  # which loses the results of one frame, not of the whole step
    }
    assert {name: lines for name, (lines, _) in found.items() if lines} == {}
    assert sum(compared for _, compared in found.values()) > 400 // every * 0.8


def test_a_piece_that_is_missing_costs_its_slots_and_is_counted(in_pieces):
    builder, put = in_pieces
    replay = imported("tests.lib.stream_replay")
    trace = next(trace for name, trace in replay.traces().items() if "_n" in name and "_c6_" in name)
    whole, parts = {}, {}
    for told, lose in ((whole, ()), (parts, (0,))):
        stream_builder.numbering._pid = 0  # another sender
        with replay.StreamReplay(trace, plugin_class(), deliver(builder, put, lose), builder) as replaying:
            for step in replaying.steps():
                for result in (one for results in step.actual["put"] for one in results):
                    if "token_ids" in result["outputs"]:
                        told.setdefault(result["request_id"], []).append(result["outputs"]["token_ids"])
            stats = replaying.processor.parts.socket.sequences.stats
    assert stats["missing"] > 0
    assert stats["doubled"] == stats["reordered"] == 0
    lost = [request for request in whole if parts.get(request) != whole[request]]
    assert lost
    assert len(lost) < len(whole) or len(whole) == 1
    for request in parts:
        assert len(parts[request]) <= len(whole[request])


def test_a_preempted_request_waits_while_any_piece_has_its_slot(in_pieces, rig_of, monkeypatch):
    """Its slot is in another piece of the step, so the worker still has it."""
    builder, put = in_pieces
    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    replay = imported("tests.lib.stream_replay")
    rig = rig_of("plain", ["a", "b", "c"])
    rig.processor.zmq_server = replay.Socket()
    rig.manager.to_be_rescheduled_request_id_set.add("c")
    for tokens, waits in (([5, 6, 7], True), ([8, 9, 10], True), ([11, 12], False)):
        last = builder(np.array(tokens))
        for piece in [*[put.get() for _ in tokens[1:]], last]:
            take(rig.processor, replay.message(piece))
        assert ("c" in rig.manager.to_be_rescheduled_request_id_set) == waits
    assert rig.manager.calls.count(["reschedule_preempt_task", "c"]) == 1


def test_tensors_that_do_not_fit_are_found_before_anything_is_sent(in_pieces):
    builder, put = in_pieces
    paddle = imported("paddle")

    def here(values, dtype):
        return paddle.to_tensor(np.array(values, dtype), place="cpu")

    builder(here([[5], [6]], "int64"))
    put.get()  # what was queued of an earlier step is no part of this one
    tensors = imported("fastdeploy.worker.output").LogprobsTensors
    wrong = tensors(here([[5, 1], [6, 2]], "int64"), here([[-1, -2]] * 2, "float32"), here([1], "int64"))
    made = builder(here([[5], [6]], "int64"), logprobs=wrong)
    assert put.empty()
    assert isinstance(made, list)  # FastDeploy's objects


def test_tokens_are_those_of_the_call_and_short_steps_wait_for_room_behind_a_long_one(in_pieces):
    """FastDeploy's worker uses their memory again."""
    builder, put = in_pieces
    tokens = np.array([5, 6])
    last = builder(tokens)
    tokens[:] = 9
    pieces = [put.get(), last, builder(tokens[:1])]
    assert [type(piece) for piece in pieces] == [FramePiece] * 3
    frames = [open_streamed(pickle.loads(pickle.dumps(piece))) for piece in pieces]
    assert [frame.tokens for frame in frames] == [[5, -1], [-1, 6], [9]]


@pytest.mark.realtime
def test_no_more_is_made_than_can_be_sent(tmp_path):
    """Through real sockets, to an engine that is slow: nothing is lost, and few pieces exist at once."""
    zmq = pytest.importorskip("zmq")
    sockets = imported("fd_postproc.fastdeploy.engine.processor.socket_source")
    context, made = zmq.Context(), []
    address = f"ipc://{tmp_path}/s"
    try:
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        engine = SimpleNamespace(zmq_server=SimpleNamespace(socket=pull), fd=None)
        source = sockets.SocketSource(engine, None)
        pull.bind(address)
        push.connect(address)
        push.SNDTIMEO = 50  # FastDeploy's is 3 s: the piece itself waits
        runner = Runner(queue.Queue(), push)

        def send():
            for number in range(40):
                part = content(1, 50_000)._replace(number=number)
                push.send(pickle.dumps(FramePiece(part, runner)))
                made.append(number)

        sending = threading.Thread(target=send)
        sending.start()
        got = []
        for number in range(40):
            assert pull.poll(20_000)
            got.append(open_streamed(pickle.loads(pull.recv())).number)
            if number == 0:
                source._keep_few(SimpleNamespace(sender=7))
            time.sleep(0.3 if number == 20 else 0)
            assert number < 20 or len(made) < number + 13
        sending.join(20)
        assert got == list(range(40))
        pull.RCVHWM = 1000
        source._keep_few(SimpleNamespace(sender=8))  # a worker that was started again
        assert pull.RCVHWM == sockets.MOST_WAITING
    finally:
        context.destroy(linger=0)
