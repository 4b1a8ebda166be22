"""Whose frame has to give way: the C code beside the reference, with little room and a clock of its own."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from tests import reference
from tests.lib import reassembly
from tests.lib.reassembly import MORE, REFUSED, WHOLE, Assembly
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import FrameHeader, Reassembler, ReferenceStep

LAYOUT = fp.Layout(max_batch=64, top_k=1, max_draft=1, spec_batch=64)
SILENT, IDLE = 61.0, 6.0


@pytest.fixture(scope="module", autouse=True)
def little_room():
    """The reference has as little room as the C code is compiled with."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in reassembly.ROOM.items():
            patch.setattr(f"tests.reference.reassembly.{name}", value)
        yield


class Pair:
    """Both, which must agree after each message."""

    def __init__(self, service=0):
        self.now = 1.0
        self.seqs = {}
        self.fast = Assembly("spec", LAYOUT, service=service)
        self.plain = Reassembler("spec", LAYOUT, service=service)

    def close(self):
        self.fast.close()

    def push(self, *messages, after=0.001):
        """The (sender, seq) of frames that became whole."""
        done = []
        for message in messages:
            self.now += after
            status, name = self.fast.add(message, self.now)
            try:
                step = self.plain.add(message, self.now)
                expected = MORE if step is None else WHOLE
            except fp.MalformedMessage:
                expected = REFUSED
            assert status == expected, FrameHeader.unpack(message)
            counters = "fragments", "incomplete", "foreign"
            fast, plain = ([getattr(one, name) for name in counters] for one in (self.fast, self.plain))
            assert fast == plain
            if status == WHOLE:
                done.append(name)
        return done

    def frame(self, sender, requests=64, pieces=4):
        """A new frame's pieces; nearly all of its requests send codes."""
        seq = self.seqs[sender] = self.seqs.get(sender, 0) + 1
        counts = [-1 - (sender + seq + i) % 9 for i in range(requests)]
        step = fp.Step.from_arrays("spec", counts, [], as_recorded=True)
        whole = reference.encode_frame(ReferenceStep.from_step(step), sender=sender, seq=seq)
        parts = reference.split(whole, 64 + -(-(len(whole) - 64) // pieces))
        assert len(parts) == pieces
        return parts

    def known(self, sender, frames=1):
        """Make a sender known."""
        for _ in range(frames):
            assert self.push(*self.frame(sender)) == [(sender, self.seqs[sender])]

    def flood(self, count, first_sender=1000):
        """The first pieces, nearly empty, of so many strangers' frames."""
        for sender in range(first_sender, first_sender + count):
            assert self.push(self.frame(sender, 16, 16)[0]) == []


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_a_known_sender_loses_nothing_to_strangers(pair):
    pair.known(1)
    frame = pair.frame(1)
    for part in frame[:-1]:
        assert pair.push(part) == []
        pair.flood(40)
    assert pair.push(frame[-1]) == [(1, 2)]


def refuse(pair, sender):
    """Send a frame in pieces whose content does not add up."""
    parts = pair.frame(sender)
    body = bytearray(b"".join(part[64:] for part in parts))
    body[0:4] = (1).to_bytes(4, "little")
    whole = FrameHeader.unpack(parts[0])._replace(fragment=0, fragments=1).pack() + bytes(body)
    pair.push(*reference.split(whole, len(parts[0])))


def test_a_frame_that_was_refused_is_not_given_up_besides(pair):
    """Its sender has no open frame any more: neither a long silence nor a lack of room counts it again."""
    pair.known(2)
    for sender in 1, 2:
        refuse(pair, sender)
    pair.push(pair.frame(3)[0], after=SILENT)
    for sender in 1, 2:
        refuse(pair, sender)
    pair.flood(40)
    assert pair.fast.incomplete == pair.plain.incomplete > 0


def test_a_frame_whose_content_does_not_add_up_makes_nobody_known(pair):
    for _ in range(3):
        refuse(pair, 1)
    frame = pair.frame(1, 64, 64)
    pair.push(frame[0])
    pair.flood(40)
    assert pair.push(*frame[1:]) == []


def random_traffic(pair, seed, messages):
    rng = random.Random(seed)
    senders = rng.choice([2, 6, 12, 30])
    kinds = rng.choice(
        [["next"], ["next"] * 9 + ["stray"], ["next", "first"], ["next"] * 6 + ["first", "stray", "whole"]]
    )
    under_way = {}
    for _ in range(messages):
        sender, kind = rng.randrange(senders), rng.choice(kinds)
        parts = under_way.get(sender)
        if not parts or kind == "first":
            requests = rng.choice([2, 16, 63, 64])
            parts = under_way[sender] = pair.frame(sender, requests, rng.choice([2, requests]))
        after = rng.choice([0.001] * 60 + [IDLE, SILENT])
        if kind == "whole":
            pair.push(pair.frame(sender, pieces=1)[0], after=after)
        elif kind == "stray":
            pair.push(rng.choice(parts), after=after)
        else:
            pair.push(parts.pop(0), after=after)


@examples(8)
@given(seed=st.integers(0, 1 << 32))
def test_random_traffic(seed):
    pair = Pair()
    random_traffic(pair, seed, 250)
    pair.close()


@pytest.mark.nightly
@each("seed", range(8))
def test_long_random_traffic(seed):
    pair = Pair()
    random_traffic(pair, seed, 100_000)
    pair.close()
