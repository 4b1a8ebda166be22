"""A queue, its Receiver, and the reference beside it, which must agree about each message."""

import time
from dataclasses import replace

import sysv_ipc

import fd_postproc as fp
from fd_postproc._core import Attendance
from tests import reference
from tests.lib.random_steps import random_step
from tests.reference import FrameHeader, Reassembler, ReferenceStep

SMALL = fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)
CHANNEL = "spec_topk"


class Line:
    def __init__(self, key, layout=SMALL, brief=True, service=0):
        self.brief, self.service = brief, service
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, mode=0o600, max_message_size=8192)
        self.layout = layout
        self.restart()

    def restart(self):
        """A new Receiver, that has seen nothing."""
        self.receiver = fp.Receiver(CHANNEL, key=self.queue.key, layout=self.layout)
        if self.service:
            Attendance(self.receiver, self.service)
        self.oracle = Reassembler(CHANNEL, self.layout, service=self.service)
        self.refused = 0

    def push(self, *messages):
        """Send messages one by one; the steps, and the errors, that came of them."""
        outcomes = []
        for message in messages:
            self.queue.send(message, type=2)
            got = self._outcome(lambda: self.receiver.receive(0))
            expected = self._outcome(lambda message=message: self.oracle.add(message, time.monotonic()))
            if isinstance(expected, fp.MalformedMessage):
                assert (got.field, got.value) == (expected.field, expected.value)
                assert str(got) == str(expected) or self.counted("oversized") != (0,)
                self.refused += 1
            else:
                assert got == expected, FrameHeader.unpack(message)
            numbers = self.oracle.sequences
            if self.brief:  # a Receiver counts what was silent for a second, which the reference does not
                counted = self.oracle.fragments, self.oracle.incomplete
                assert self.counted("fragments", "incomplete") == counted
            assert sum(self.counted("malformed", "oversized")) == self.refused
            assert self.counted("foreign") == (self.oracle.foreign,)
            assert self.trouble == (numbers.missing, numbers.doubled, numbers.reordered)
            assert self.receiver.senders == numbers.senders
            if got is not None:
                outcomes.append(got)
        return outcomes

    @staticmethod
    def _outcome(attempt):
        try:
            step = attempt()
        except fp.MalformedMessage as error:
            return error
        return ReferenceStep.from_step(step) if isinstance(step, fp.Step) else step

    def counted(self, *names):
        return tuple(self.receiver.stats[name] for name in names)

    @property
    def trouble(self):
        return self.counted("missing", "doubled", "reordered")

    @property
    def incomplete(self):
        return self.receiver.stats["incomplete"]


class Frame:
    """A step of a sender, and its pieces."""

    def __init__(self, sender, seq=0, pieces=4, checksum=True, service=0):
        step = random_step(CHANNEL, 100 * sender + seq, batch=6, cols=4, accepted=2, layout=SMALL)
        step = ReferenceStep.from_step(step)
        self.whole = reference.encode_frame(step, sender=sender, seq=seq, checksum=checksum, service=service)
        self.step = replace(step, dialect="compact", seq=seq)
        self.parts = self.cut(pieces)

    def cut(self, pieces):
        parts = reference.split(self.whole, 64 + -(-(len(self.whole) - 64) // pieces))
        assert len(parts) == pieces
        return parts


def changed(part, **fields):
    """A piece with other header fields."""
    return FrameHeader.unpack(part)._replace(**fields).pack() + part[64:]


def flipped(message, bit):
    """A message with another bit."""
    found = bytearray(message)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)
