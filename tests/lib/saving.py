"""What the tests of save ops share: the op and its reference, called alike; what came out of the queue."""

import threading

import fd_postproc as fp
from fd_postproc import ops
from tests import reference


def saved(op, *args, **keywords):
    return reference.save(op, *args, **keywords)


def send(op, *args, **keywords):
    return getattr(ops, op)(*args, **keywords)


def assert_same(message, expected):
    """Every byte that FastDeploy's op writes is the same, and no other is sent beyond them."""
    payload, mtype = message
    assert mtype == 1
    assert len(payload) == len(expected.payload)
    for part in expected.written:
        ours, theirs = payload[part.start : part.stop], expected.payload[part.start : part.stop]
        assert ours == theirs, f"bytes {part}"


def step_of(expected, layout=fp.GPU):
    return reference.decode(expected.payload, expected.channel, layout=layout)


def received_meanwhile(channel, act):
    """What a receiver gets while another thread acts; the queue may be too small to hold it all."""
    with fp.Receiver(channel) as receiver:
        got = []
        thread = threading.Thread(target=lambda: got.append(receiver.receive(20)))
        thread.start()
        act()
        thread.join(30)
        assert got, "nothing came"
        assert receiver.receive(0) is None
    return got[0]
