"""What the tests of the send path share."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import fd_postproc as fp
from tests.reference import ReferenceStep

DIALECTS = ("packed", "legacy", "compact")
LARGEST = {"channel": "spec_topk", "seed": 1, "batch": 512, "cols": 21, "accepted": 6}


@contextmanager
def pipe(key, channel="spec_topk", dialect="compact", **options):
    """A Sender and a Receiver at one queue."""
    with (
        fp.Sender(channel, key=key, dialect=dialect, **options) as sender,
        fp.Receiver(channel, key=key, **options) as receiver,
    ):
        yield sender, receiver


def fill(sender, step):
    """Send until the queue is full; how many fitted."""
    for n in range(100_000):
        try:
            sender.send(step, 0)
        except fp.QueueTimeout:
            return n
    raise AssertionError("the queue never filled up")


@contextmanager
def in_thread(call, *args, **keywords):
    """Run a call beside the test; what it returned or raised, in a list, is there at the end."""
    outcome = []

    def run():
        try:
            outcome.append(call(*args, **keywords))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive(), "it hangs"


def same(got, sent):
    """The step that came is the one that was sent, whatever its number."""
    return replace(ReferenceStep.from_step(got), dialect=None, seq=None) == replace(
        ReferenceStep.from_step(sent), dialect=None, seq=None
    )
