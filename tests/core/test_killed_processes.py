"""Processes that die, restart or fork in the middle of things."""

import os
import signal
import subprocess
import threading
import time

import pytest

import fd_postproc as fp
from fd_postproc._core import Attendance
from tests import reference
from tests.lib.children import ended, forked, in_a_child, python
from tests.lib.marks import forks_beside_threads
from tests.lib.random_steps import random_step
from tests.lib.search import crossed
from tests.lib.sending import fill
from tests.lib.waiting import until

PIECES = 12
pytestmark = pytest.mark.realtime
LARGE = {"channel": "spec_topk", "seed": 1, "batch": 256, "cols": 21, "accepted": 2}


@pytest.mark.parametrize("pieces", crossed(range(1, PIECES), every=4))
def test_a_sender_killed_after_every_piece_of_a_frame(pieces, default_limits, queue):
    """Its frame is lost and counted; what came before it and what comes after is whole."""
    default_limits("msgmnb", 1 << 20)
    before, sent, after = (random_step("spec_topk", seed, batch=3) for seed in (5, 6, 7))
    large = random_step(**LARGE)
    piece = 64 + -(-(len(fp.encode(large, "compact")) - 64) // PIECES)
    receiver = fp.Receiver("spec_topk", key=queue.key)
    fp.Sender("spec_topk", key=queue.key).send(before)
    # Room for so many pieces and not one more: there the sender waits, and is killed.
    waiting = len(fp.encode(before))
    queue.max_size = waiting + pieces * piece + piece // 2

    def send():
        sender = fp.Sender("spec_topk", key=queue.key, dialect="compact")
        sender.send(large)

    default_limits("msgmax", piece)
    child = forked(send)
    until(lambda: queue.current_messages == 1 + pieces)
    time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert queue.current_messages == 1 + pieces

    assert receiver.receive(0) == before
    queue.max_size = 1 << 20
    next_one = fp.Sender("spec_topk", key=queue.key, dialect="compact")
    next_one.send(sent)
    assert receiver.receive(0) == sent
    next_one.send(large)
    assert receiver.receive(0) == large
    assert receiver.receive(0) is None
    assert receiver.stats["fragments"] == pieces + PIECES
    # The rest of a frame may come late, for all a receiver knows: it does not give way yet, and counts later.
    for _ in range(8):
        half_frame(queue, large, piece)
        assert receiver.receive(0) is None
    assert receiver.stats["incomplete"] <= 8 + 1
    fp.Sender("spec_topk", key=queue.key).send(after)
    assert receiver.receive(0) == after


def test_a_frame_that_was_counted_and_goes_on_is_delivered(default_limits, queue):
    default_limits("msgmnb", 1 << 20)
    default_limits("msgmax", 1 << 20)
    large = random_step(**LARGE)
    frame = reference.encode_frame(reference.ReferenceStep.from_step(large), sender=7, seq=0)
    first, *rest = reference.split(frame, len(frame) // 3)
    receiver = fp.Receiver("spec_topk", key=queue.key)
    queue.max_size = 1 << 20
    queue.send(first, type=2)
    until(lambda: receiver.receive(0.1) is None and receiver.stats["incomplete"])
    for piece in rest:
        queue.send(piece, type=2)
    assert receiver.receive(0) == large
    assert receiver.stats["incomplete"] == 1


def half_frame(queue, step, piece):
    """The first piece of a frame by a sender who is never heard of again."""
    frame = reference.encode_frame(
        reference.ReferenceStep.from_step(step), sender=int.from_bytes(os.urandom(8), "little"), seq=0
    )
    queue.send(reference.split(frame, piece)[0], type=2)


RECEIVE = """
import os, sys
receiver = fp.Receiver("spec_topk", key=int(sys.argv[1]))
print("ready", flush=True)
for step in receiver:
    os.write(1, b"%d\\n" % step.seq)
"""


def test_a_receiver_killed_and_started_again(default_limits, queue):
    """Each kill costs at most the step that was being received; everything else comes once, in order."""
    steps, kills = 200, 1
    small, large = random_step("spec_topk", 1, batch=2), random_step(**LARGE)
    failed = []

    def send():
        try:
            with fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender:
                for n in range(steps):
                    sender.send(large if n % 7 == 0 else small, 20)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    got = []
    command = python("import fd_postproc as fp\n" + RECEIVE, queue.key)
    for life in range(kills + 1):
        if got and got[-1] == steps - 1:
            break
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        # One that was killed may have taken the last step along: then nothing more comes.
        patience = threading.Timer(10, child.kill)
        patience.start()
        try:
            assert child.stdout.readline() == b"ready\n"
            due = steps if life == kills else len(got) + 60 + 7 * life
            while len(got) < due and (line := child.stdout.readline()):
                got.append(int(line))
                if got[-1] == steps - 1:
                    break
        finally:
            patience.cancel()
            child.kill()
            rest = child.stdout.read()
            child.stdout.close()
            child.wait()
        got += map(int, rest.split())
    thread.join(20)
    assert not failed, failed
    assert got == sorted(set(got)), "doubled or out of order"
    lost = sorted(set(range(steps)) - set(got))
    assert len(lost) <= kills, lost


def test_a_fork_in_the_middle_of_a_frame(default_limits, queue):
    """The child has what came so far, and may go on where the parent stopped."""
    large, small = random_step(**LARGE), random_step("spec_topk", 3, batch=2)
    parts = reference.split(reference.encode_frame(reference.ReferenceStep.from_step(large)), 8192)
    receiver = fp.Receiver("spec_topk", key=queue.key)
    for part in parts[:3]:
        queue.send(part, type=2)
        assert receiver.receive(0) is None

    def go_on():
        for part in parts[3:]:
            queue.send(part, type=2)
            got = receiver.receive(0)
        assert got == large

    in_a_child(go_on)
    fp.Sender("spec_topk", key=queue.key).send(small)
    assert receiver.receive(0) == small


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@forks_beside_threads
def test_a_fork_while_another_thread_waits(default_limits, new_queue):
    """The thread is not in the child, whose Receiver and Sender are free; the parent's go on waiting."""
    step, queues = fp.Step.from_arrays("plain", [1], [5]), [new_queue(), new_queue()]
    receiver = fp.Receiver("plain", key=queues[0].key)
    attendance = Attendance(receiver, 7)
    sender = fp.Sender("plain", key=queues[1].key, dialect="compact")
    fill(sender, step)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(receiver.receive())),
        threading.Thread(target=sender.send, args=(step,)),
    ]
    for thread in threads:
        thread.start()
    until(lambda: receiver.stats["waits"] and sender.waiting_seconds)

    def use():
        assert receiver.receive(0.05) is None
        assert attendance.service == 7
        assert sender.waiting_seconds == 0.0
        waits = sender.stats["waits"]
        with pytest.raises(fp.QueueTimeout):
            sender.send(step, 0.05)
        assert sender.stats["waits"] == waits + 1

    in_a_child(use)
    with pytest.raises(fp.ReceiverBusy):
        receiver.receive(0)
    with pytest.raises(fp.SenderBusy):
        sender.send(step, 0)
    queues[0].send(fp.encode(step))
    queues[1].receive()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert got == [step]


def test_who_sent_a_step(queue):
    """The kernel knows the last sender only, so it is noted while nothing else waits."""
    step = fp.Step.from_arrays("plain", [1], [5])

    def child():
        child = forked(lambda: fp.Sender("plain", key=queue.key).send(step, 20))
        assert ended(child) == 0
        return child

    def received():
        attendance.sender_due = 0  # asked at every step
        assert attendance.receive(20) == step
        return attendance.last_sender

    receiver = fp.Receiver("plain", key=queue.key)
    attendance = Attendance(receiver)
    child()
    assert receiver.receive(20) == step
    assert attendance.last_sender == 0  # nobody asks
    first, second = child(), child()
    assert received() == 0
    assert received() == second != first
