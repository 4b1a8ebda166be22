"""Who sent a step?  The kernel knows the last sender only, so it is noted while nothing else waits."""

import os

import pytest

import fd_postproc as fp


def sent_by_a_child(key):
    """Send a step from another process; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with fp.Sender("plain", key=key) as sender:
                sender.send(fp.Step.from_arrays("plain", [1], [5]), 20)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return child


@pytest.fixture
def receiver(queue):
    with fp.Receiver("plain", key=queue.key) as made:
        made._follows_sender = True
        yield made


def received(receiver):
    receiver._sender_due = 0  # asked at every step
    assert receiver.receive(20) is not None
    return receiver._last_sender


def test_of_one_step_it_is_known(receiver, queue):
    child = sent_by_a_child(queue.key)
    assert received(receiver) == child


def test_while_others_wait_it_is_not(receiver, queue):
    first = sent_by_a_child(queue.key)
    second = sent_by_a_child(queue.key)
    assert first != second
    assert received(receiver) == 0
    assert received(receiver) == second


def test_one_that_does_not_follow_senders_asks_nothing(queue):
    sent_by_a_child(queue.key)
    with fp.Receiver("plain", key=queue.key) as made:
        assert made.receive(20) is not None
        assert made._last_sender == 0
