"""Two services in one queue: each frame has its service's number, and frames of another are refused."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import Attendance, _service_of, peek
from fd_postproc.support.environment import SERVICE
from tests import reference
from tests.lib.line import CHANNEL, SMALL, Frame, Line, changed, flipped
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import FrameHeader, ReferenceStep
from tests.reference.frames import decode_frame

OURS, OTHER = 0xA0000001, 0xB0000002


@pytest.fixture
def line(queue_keys):
    return Line(queue_keys(), service=OURS)


def steps(outcomes):
    return [one for one in outcomes if isinstance(one, ReferenceStep)]


def test_the_bytes_of_a_frame_with_a_number(queue_keys):
    """As written down in docs/wire-protocol.md: a mark, and the upper half of the sender's number."""
    step = random_step(CHANNEL, 1, batch=3, cols=2, accepted=2, layout=SMALL)
    key, sent = queue_keys(), []
    for service in 0, 0x0A0B0C0D:
        with fp.Sender(CHANNEL, key=key, layout=SMALL, dialect="compact") as sender:
            sender._service = service
            sender.send(step)
            mtype, payload = peek(sender.msqid, len(sent))
        sent.append(payload)
        assert (mtype, _service_of(payload, mtype)) == (2, service)
        assert fp.decode(payload, CHANNEL, mtype=2, layout=SMALL) == step
        whose = FrameHeader.unpack(payload).sender
        again = reference.encode_frame(ReferenceStep.from_step(step), sender=whose, seq=0, service=service)
        assert payload == again
    without, with_number = sent
    assert len(with_number) == len(without)
    assert with_number[52:56] == bytes.fromhex("0d0c0b0a")
    assert (with_number[19], without[19]) == (1 | 4, 1)
    assert with_number[:19] + with_number[20:48] == without[:19] + without[20:48]
    assert with_number[56:60] + with_number[64:] == without[56:60] + without[64:]


@each(
    "service, delivered",
    [(OURS, True), (OTHER, False), (1, False), ((1 << 32) - 1, False), (0, True)],
)
def test_a_frame_of_another_service_is_refused_and_costs_no_other(service, delivered, queue_keys):
    line = Line(queue_keys(), service=OURS)
    mine = [Frame(sender, seq, service=OURS) for sender, seq in ((1, 0), (2, 0), (1, 1))]
    for pieces in [Frame(1, 0, service=service).whole], Frame(1, 1, service=service).parts:
        outcomes = line.push(*pieces)
        assert bool(steps(outcomes)) is delivered
        if not delivered:
            assert {one.args for one in outcomes} == {(CHANNEL, "service", service, OURS, None)}
    assert line.counted("foreign", "malformed") == (5 * (not delivered),) * 2
    assert steps(line.push(*(part for frame in mine for part in frame.parts))) == [one.step for one in mine]


def test_interleaved_pieces_of_two_services_with_equal_sender_numbers(queue_keys):
    """A receiver of each: both read the same queue, as two engines would, and neither mixes pieces."""
    ours = [Frame(1, seq, service=OURS) for seq in range(3)]
    others = [Frame(1, 7 + seq, service=OTHER) for seq in range(3)]
    mixed = [
        part for pair in zip(ours, others, strict=True) for two in zip(*(f.parts for f in pair), strict=True)
        for part in two
    ]  # fmt: skip
    for service, frames in (OURS, ours), (OTHER, others):
        line = Line(queue_keys(), service=service)
        assert steps(line.push(*mixed)) == [frame.step for frame in frames]
        assert line.counted("foreign", "incomplete", "missing") == (12, 0, 0)
    line = Line(queue_keys())  # a reader without a number tells the senders apart all the same
    assert {one.seq for one in steps(line.push(*mixed))} == {0, 1, 2, 7, 8, 9}
    assert line.counted("foreign", "incomplete") == (0, 0)


def test_frames_without_a_number_come_until_the_first_with_one(line):
    """A worker of an earlier version sends none; one that does sends it with each frame."""
    old = [Frame(1, seq) for seq in range(3)]
    assert steps(line.push(*(one.whole for one in old[:2]))) == [one.step for one in old[:2]]
    new = Frame(2, 0, service=OURS)
    assert steps(line.push(*new.parts)) == [new.step]
    (refused,) = line.push(old[2].whole)
    assert refused.args == (CHANNEL, "service", 0, OURS, None)
    assert line.counted("foreign") == (1,)


def test_a_number_that_was_changed_on_the_way_is_no_other_service(line):
    (refused,) = line.push(flipped(Frame(1, 0, service=OURS).whole, 8 * 55))
    assert refused.field == "checksum"
    assert line.counted("foreign", "corrupt") == (0, 1)


def test_a_frame_of_another_service_and_another_channel_or_layout_is_of_another_service(line):
    for fields in {"channel": 1}, {"batch": 9}, {"cols": 9}:
        (refused,) = line.push(changed(Frame(1, 0, checksum=False, service=OTHER).whole, **fields))
        assert refused.field == "service"


@examples(60)
@given(
    seed=st.integers(0, 1 << 32),
    service=st.integers(0, (1 << 32) - 1),
    sender=st.integers(0, (1 << 64) - 1),
    seq=st.integers(0, (1 << 64) - 1),
)
def test_any_number_comes_back(seed, service, sender, seq):
    """The step remembers its own; sent on, it has no sender or service yet."""
    step = random_step(CHANNEL, seed, batch=3, cols=2, layout=SMALL)
    frame = reference.encode_frame(ReferenceStep.from_step(step), sender=sender, seq=seq, service=service)
    assert _service_of(frame, 2) == service == FrameHeader.unpack(frame).service
    assert _service_of(frame, 1) == 0
    again = fp.decode(frame, CHANNEL, mtype=2, layout=SMALL)
    decoded = ReferenceStep.from_step(again)
    assert decoded == replace(ReferenceStep.from_step(step), dialect="compact", seq=seq)
    assert fp.encode(again, "compact", layout=SMALL) == reference.encode_frame(decoded, seq=seq)
    assert decode_frame(frame, CHANNEL, SMALL) == decoded


@each(
    "peer, number",
    [
        ("compact/1", 0),
        (f"compact/1,{SERVICE}0000002a", 0x2A),
        (f"compact/1,streams/3,{SERVICE}ffffffff,other/9", 0xFFFFFFFF),
        (f"compact/1,{SERVICE}2a", 0),
        (f"compact/1,{SERVICE}0000002A", 0),
    ],
)
@each("dialect", ["auto", "compact"])
def test_a_save_op_sends_the_number_that_its_reader_has_announced(
    dialect, peer, number, ops_queue, monkeypatch
):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    monkeypatch.setenv("FD_POSTPROC_PEER", peer)
    ops.save_output_topk(
        np.array([[5]]), np.array([[5]]), np.zeros((1, 1), np.float32), np.array([1]),
        np.array([True]), np.zeros((1, 1), np.int32), 0,
    )  # fmt: skip
    with fp.Receiver("topk") as receiver:
        mtype, payload = peek(receiver.msqid)
        assert _service_of(payload, mtype) == number
        Attendance(receiver, number or OURS)
        assert receiver.receive(0).batch == 1


def test_a_child_of_a_sender_has_the_same_number(queue_keys):
    step = random_step(CHANNEL, 1, batch=3, cols=2, layout=SMALL)
    key = queue_keys()
    receiver = fp.Receiver(CHANNEL, key=key, layout=SMALL)
    Attendance(receiver, OURS)
    sender = fp.Sender(CHANNEL, key=key, layout=SMALL, dialect="compact")
    sender._service = OURS
    sender.send(step)
    child = os.fork()
    if child == 0:
        sender.send(step)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [receiver.receive(0).batch for _ in range(2)] == [3, 3]
    assert len(receiver.senders) == 2
    assert {number >> 32 for number in receiver.senders} == {OURS}
