"""Sender and Receiver over each transport: the same calls do the same, over a queue, ipc and tcp."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import fd_postproc as fp
from tests.lib.children import python
from tests.lib.random_steps import random_step
from tests.lib.roads import arriving, filled, large, numbered, token
from tests.lib.sending import fill, in_thread, same
from tests.lib.waiting import PATIENCE, signalled, until, when

CHANNELS = ("plain", "topk", "spec", "spec_topk")


@pytest.mark.parametrize("channel", CHANNELS)
def test_steps_come_as_they_were_sent(road, channel):
    steps = [random_step(channel, seed) for seed in range(20)]
    receiver, sender = road.receiver(channel), road.sender(channel)
    with in_thread(lambda: [sender.send(step, 20) for step in steps]):
        came = [receiver.receive(20) for _ in steps]
    assert all(same(got, sent) for got, sent in zip(came, steps, strict=True))
    assert [step.seq for step in came] == list(range(20))
    assert {step.dialect for step in came} == {"compact"}
    assert receiver.stats["messages"] == sender.stats["messages"]
    assert receiver.stats["bytes"] == sender.stats["bytes"]
    assert sender.stats["frames"] == 20
    (heard,) = receiver.senders.values()
    assert heard == {"frames": 20, "next": 20, "missing": 0, "doubled": 0, "reordered": 0}


def test_a_time_limit(road):
    receiver = road.receiver()
    began = time.monotonic()
    assert receiver.receive(0) is None
    assert receiver.receive(0.05) is None
    assert 0.05 <= time.monotonic() - began < PATIENCE
    assert receiver.stats["waits"] == 1
    assert 0.04 < receiver.stats["wait_seconds"] < 5
    assert receiver.stats["messages"] == 0


def test_malformed_messages_are_refused_and_take_no_neighbour_along(road):
    receiver, sender = road.receiver(), road.sender()
    whole = bytearray(fp.encode(numbered(7), "compact"))
    whole[-1] ^= 1
    bad = [b"x", b"x" * 80, bytes(whole), fp.encode(random_step("topk", 1, batch=3, cols=2), "compact")]
    sender.send(numbered(1))
    assert arriving(receiver, 1) == [1]
    road.inject(*bad)
    fields = []
    for _ in bad:
        with pytest.raises(fp.MalformedMessage) as caught:
            receiver.receive(20)
        fields.append(caught.value.field)
        assert receiver._refused()[0] == 2
        assert receiver._refused()[1] in bad
    assert fields == ["length", "magic", "checksum", "channel"]
    sender.send(numbered(2))
    assert arriving(receiver, 1) == [2]
    assert (receiver.stats["malformed"], receiver.stats["corrupt"]) == (4, 1)
    assert receiver.stats["missing"] == 0


def test_a_message_that_is_too_long(road):
    receiver, sender = road.receiver(), road.sender()
    size = 8000 if road.is_queue else 1 << 21  # at an address, a frame may have sections of 1 MiB
    road.inject(b"x" * size)
    with pytest.raises(fp.MalformedMessage, match=f"{size} bytes, more than"):
        receiver.receive(20)
    assert receiver.stats["oversized"] == 1
    sender.send(numbered(1))
    assert arriving(receiver, 1) == [1]


def test_a_frame_in_pieces_is_put_together(road):
    """As in a recording of a queue that is replayed."""
    receiver = road.receiver("topk")
    step = random_step("topk", 3, batch=5, cols=4)
    whole = fp.encode(step, "compact")
    pieces = []
    for k, part in enumerate((whole[64:264], whole[264:])):
        head = bytearray(whole[:64])
        head[56:60] = bytes((k, 0, 2, 0))
        pieces.append(bytes(head) + part)
    road.inject(*pieces)
    assert same(receiver.receive(20), step)
    assert receiver.stats["fragments"] == 2


def test_several_senders(road):
    receiver = road.receiver()
    senders = [road.sender() for _ in range(4)]

    def send(k):
        for n in range(200):
            senders[k].send(numbered(1000 * k + n), 20)

    threads = [threading.Thread(target=send, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    came = arriving(receiver, 800)
    for thread in threads:
        thread.join()
    for k in range(4):
        assert [number for number in came if number // 1000 == k] == list(range(1000 * k, 1000 * k + 200))
    assert len(receiver.senders) == 4
    assert receiver.stats["missing"] == receiver.stats["doubled"] == receiver.stats["reordered"] == 0


SENDS_FOREVER = """
import fd_postproc as fp
sender = fp.Sender("plain", dialect="compact", **END)
k = 0
while True:
    sender.send_arrays([1], [k])
    k += 1
"""


def test_a_killed_sender(road):
    """What came of it is its beginning, and others are not disturbed."""
    receiver, other = road.receiver(), road.sender()
    child = subprocess.Popen(python(SENDS_FOREVER.replace("END", repr(road.end))))
    came = arriving(receiver, 300)
    child.kill()
    child.wait()
    other.send(numbered(1 << 20), 20) if road.is_queue else None
    while (step := receiver.receive(0.3)) is not None:
        came.append(token(step))
    if not road.is_queue:
        other.send(numbered(1 << 20), 20)
        came += arriving(receiver, 1)
    came.remove(1 << 20)
    assert came == list(range(len(came)))
    assert receiver.stats["missing"] == receiver.stats["malformed"] == receiver.stats["incomplete"] == 0


def test_a_full_way_waits_and_then_raises(road):
    receiver, sender = road.receiver(), road.sender(hwm=20)
    sender.send(numbered(0))
    assert arriving(receiver, 1) == [0]  # they are connected
    before = dict(sender.stats)
    held = filled(sender, large(1))
    assert road.is_queue or held > 20  # what the kernel has, and the mark
    with pytest.raises(fp.QueueTimeout) as caught:
        sender.send(large(2), 0.05)
    assert "stayed full for the whole timeout" in str(caught.value)
    assert road.is_queue or "hwm=20 steps wait to be sent" in str(caught.value)
    assert road.is_queue or "a receiver is connected, and takes none" in str(caught.value)
    assert sender.stats["waits"] >= before["waits"] + 1
    assert sender.stats["wait_seconds"] > before["wait_seconds"] + 0.3
    assert sender.waiting_seconds == 0
    with in_thread(sender.send, large(3), 20) as outcome:
        until(lambda: sender.waiting_seconds)
        assert arriving(receiver, held) == [1] * held
    assert outcome == [None]
    assert arriving(receiver, 1) == [3]
    assert receiver.stats["missing"] >= 2  # the numbers of those that were given up


def outcome_of(sender):
    with pytest.raises(fp.QueueTimeout) as caught:
        sender.send(numbered(0), 0)
    return str(caught.value)


def test_nobody_there(address_road):
    address_road.receiver().close()
    sender = address_road.sender(hwm=3)
    for k in range(3):
        sender.send(numbered(k), 0)
    assert "no receiver is connected" in outcome_of(sender)
    receiver = address_road.receiver()
    assert arriving(receiver, 3) == [0, 1, 2]


def test_sends_and_receives_do_not_hold_the_gil(road):
    receiver, sender = road.receiver(), road.sender(hwm=2)
    counted = 0
    with in_thread(receiver.receive, 20):
        until(lambda: receiver.stats["waits"])
        began = time.thread_time()
        for _ in range(1000):
            counted += 1
        assert time.thread_time() - began < 5
        sender.send(numbered(1))
    filled(sender, large(1))
    with in_thread(sender.send, large(1), 20) as outcome:
        until(lambda: sender.waiting_seconds)
        while not outcome:
            receiver.receive(0)


def test_a_waiting_receiver_does_nothing(address_road):
    """It is woken, and does not look."""
    receiver = address_road.receiver()
    before = time.process_time()
    assert receiver.receive(1.0) is None
    assert time.process_time() - before < 0.3


def test_signals_run_while_waiting(road):
    receiver, sender = road.receiver(), road.sender(hwm=2)
    handled = []

    def handle(*_):
        handled.append(True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), signalled(handle, lambda: receiver.stats["waits"]):
        receiver.receive(20)
    filled(sender, large(1))
    with pytest.raises(KeyboardInterrupt), signalled(handle, lambda: sender.waiting_seconds):
        sender.send(large(1), 20)
    assert len(handled) == 2
    assert sender.waiting_seconds == 0
    assert arriving(receiver, 2) == [1, 1]


def test_a_signal_handler_that_raises_costs_no_step(address_road):
    """As a time limit by SIGALRM does, wherever the call is; the Receiver goes on with the next step."""
    receiver, sender, raised = address_road.receiver(), address_road.sender(), []

    def raises(_, frame):
        if frame.f_code.co_filename.endswith(("/inlet.py", "/plain_inlet.py")):
            raised.append(frame.f_code.co_name)
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, raises)
    with in_thread(lambda: [sender.send(numbered(k), 60) for k in range(3000)]):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            while receiver.stats["messages"] < 3000 or len(raised) < 20:
                with contextlib.suppress(TimeoutError):
                    receiver.receive(0.05)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    (heard,) = receiver.senders.values()
    assert heard == {"frames": 3000, "next": 3000, "missing": 0, "doubled": 0, "reordered": 0}


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a connection that nobody has noted yet
def test_an_exception_after_any_call_costs_no_step(address_road):
    """Where a signal handler may raise: each call that the receiving end makes while a Sender connects."""
    receiver = address_road.receiver()
    for nth in itertools.count():
        left = nth

        def raises(frame, event, _):
            nonlocal left
            if event in ("c_call", "c_return") and frame.f_code.co_filename.endswith("/plain_inlet.py"):
                left -= 1
                if left < 0:
                    raise TimeoutError  # which ends the profiling, too

        sender, came = address_road.sender(), []
        with in_thread(lambda: [sender.send(numbered(k), 20) for k in range(3)]):  # noqa: B023
            sys.setprofile(raises)
            try:
                while len(came) < 3:
                    with contextlib.suppress(TimeoutError):
                        step = receiver.receive(20)
                        assert step is not None, f"a step was lost: call {nth}"
                        came.append(token(step))
            finally:
                sys.setprofile(None)
        assert came == [0, 1, 2]
        if left >= 0:
            break
    assert nth > 20


@pytest.mark.parametrize("timeout", [None, 20])
def test_close_wakes_who_waits_and_takes_nothing(road, timeout):
    receiver = road.receiver()
    with in_thread(receiver.receive, timeout) as outcome:
        until(lambda: receiver.stats["waits"])
        began = time.monotonic()
        receiver.close()
    assert time.monotonic() - began < PATIENCE
    assert isinstance(outcome[0], fp.ReceiverClosed)
    assert receiver.closed
    sender = road.sender(hwm=2)
    sender.send(numbered(1))
    for call in (lambda: receiver.receive(0), lambda: list(receiver)):
        with pytest.raises(fp.ReceiverClosed, match="is closed"):
            call()
    assert receiver.stats["messages"] == 0
    assert arriving(road.receiver(), 1) == [1]


def test_close_while_a_send_waits(address_road):
    address_road.receiver().close()
    sender = address_road.sender(hwm=1)
    fill(sender, numbered(1))
    with in_thread(sender.send, numbered(1)) as outcome:
        until(lambda: sender.waiting_seconds)
        with pytest.raises(fp.QueueTimeout):
            sender.close()
    assert isinstance(outcome[0], ValueError)


@pytest.mark.parametrize("end", ["close", "remove"])
def test_a_task_that_waits_is_woken(road, end):
    receiver = road.receiver()

    async def main():
        async def steps():
            return [step async for step in receiver]

        waiting = asyncio.ensure_future(steps())
        await asyncio.sleep(0.05)
        getattr(receiver, end)()
        return await asyncio.wait_for(waiting, 20)

    if end == "remove":
        assert asyncio.run(main()) == []
    else:
        with pytest.raises(fp.ReceiverClosed):
            asyncio.run(main())


def test_remove_wakes_and_ends(road):
    receiver = road.receiver()
    with in_thread(receiver.receive) as outcome:
        until(lambda: receiver.stats["waits"])
        time.sleep(0.02)
        receiver.remove()
    assert isinstance(outcome[0], fp.QueueRemoved)
    assert receiver.closed
    assert list(receiver) == []
    with pytest.raises(ValueError, match="the Receiver is closed"):
        receiver.receive(0)


def test_iterating_ends_with_the_receiver(road):
    receiver, sender = road.receiver(), road.sender()
    for k in range(3):
        sender.send(numbered(k))
    seen = []
    for step in receiver:
        seen.append(token(step))
        if len(seen) == 3:
            receiver.remove()
    assert seen == [0, 1, 2]


def test_one_thread_at_a_time(road):
    receiver, sender = road.receiver(), road.sender()
    with in_thread(receiver.receive, 20):
        until(lambda: receiver.stats["waits"])
        with pytest.raises(fp.ReceiverBusy):
            receiver.receive(0)
        sender.send(numbered(1))


def test_asyncio(road):
    receiver, sender = road.receiver(), road.sender()

    async def main():
        assert await receiver.receive_async(0) is None
        assert await receiver.receive_async(0.02) is None
        later = asyncio.get_running_loop().run_in_executor(
            None, lambda: [sender.send(numbered(k), 20) for k in range(50)]
        )
        seen = []
        async for step in receiver:
            seen.append(token(step))
            if len(seen) == 50:
                break
        await later
        waiting = asyncio.ensure_future(receiver.receive_async())
        await asyncio.sleep(0.05)
        receiver.remove()
        with pytest.raises((ValueError, fp.QueueRemoved)):
            await waiting
        return seen

    assert asyncio.run(main()) == list(range(50))


def test_after_a_fork_the_child_is_another_sender(road):
    receiver, sender = road.receiver(), road.sender(linger=20)
    sender.send(numbered(1), 20)
    child = os.fork()
    if child == 0:
        try:
            sender.send(numbered(2), 20)
            sender.close()
            os._exit(0)
        finally:
            os._exit(1)
    sender.send(numbered(3), 20)
    came = arriving(receiver, 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(came) == [1, 2, 3]
    assert came.index(1) < came.index(3)
    assert sorted(one["frames"] for one in receiver.senders.values()) == [1, 2]


def test_after_a_fork_the_address_is_the_parent_s(address_road):
    receiver, sender = address_road.receiver(), address_road.sender()
    child = os.fork()
    if child == 0:
        try:
            receiver.receive(0)
        except ValueError as error:
            receiver.close()
            os._exit(0 if "before a fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sender.send(numbered(1))
    assert arriving(receiver, 1) == [1]


def test_a_receiver_that_is_restarted(road):
    """A queue keeps what was not received; at an address, what was on its way is lost, and told."""
    receiver, sender = road.receiver(), road.sender()
    came = []

    def send(k):
        for n in range(40):
            sender.send(numbered(40 * k + n), 20)

    for k in range(5):
        thread = when(lambda: True, send, k)
        came += arriving(receiver, 10)
        receiver.close()  # in the middle of it
        receiver = road.receiver()
        thread.join()
    while (step := receiver.receive(0.5)) is not None:
        came.append(token(step))
    assert came == sorted(set(came))
    if road.is_queue:
        assert came == list(range(200))
    sender.send(numbered(200))
    assert arriving(receiver, 1) == [200]


def test_what_was_not_sent_when_a_sender_is_closed(address_road):
    address_road.receiver().close()
    sender = fp.Sender("plain", **address_road.end, linger=0.1)
    for k in range(7):
        sender.send(numbered(k))
    with pytest.raises(fp.QueueTimeout, match=r"7 of 7 steps were not sent in 0\.1 s and are lost") as caught:
        sender.close()
    assert "no receiver is connected" in str(caught.value)
    sender.close()
    with pytest.raises(ValueError, match="closed"):
        sender.send(numbered(1))


@pytest.mark.parametrize("width", [1, 290])
def test_close_waits_for_a_slow_receiver(address_road, width):
    """ZeroMQ alone loses what is in its own buffer when the kernel's is full."""
    receiver = address_road.receiver("spec")
    step = fp.Step.from_arrays("spec", [6] * width, [5] * 6 * width)
    sender = fp.Sender("spec", **address_road.end, linger=60, hwm=1 << 20)
    count = 300 if width > 1 else 3000

    def send():
        for _ in range(count):
            sender.send(step)
        sender.close()

    with in_thread(send):
        for k in range(count):
            assert receiver.receive(60) is not None
            if k < 50 or k > count - 40:
                time.sleep(0.01)
    assert receiver.receive(0) is None
    assert receiver.stats["missing"] == 0


def test_an_exception_is_not_held_up(address_road, caplog):
    address_road.receiver().close()
    began = time.monotonic()

    def fails():
        with fp.Sender("plain", **address_road.end, linger=60) as sender:
            sender.send(numbered(1))
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert time.monotonic() - began < PATIENCE
    assert "1 of 1 steps were not sent" in caplog.text
