"""Receiving in asyncio: nothing is lost, nobody is kept waiting, nothing is left behind."""

import asyncio
import contextlib
import threading

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import aio, queues
from tests.lib.waiting import until


@pytest.fixture
def receiver(queue_key):
    with fp.Receiver("plain", key=queue_key) as receiver:
        yield receiver
    until(lambda: not watchers())


@pytest.fixture
def sender(receiver):
    with fp.Sender("plain", key=receiver.key) as sender:
        yield sender


def send(sender, *tokens):
    for token in tokens:
        sender.send_arrays([1], [token])


def token(step):
    return step.token_ids(0)[0]


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "fd_postproc-asyncio"]


def test_steps_come_in_order(receiver, sender):
    async def main():
        later = asyncio.get_running_loop().run_in_executor(None, send, sender, *range(50))
        seen = []
        async for step in receiver:
            seen.append(token(step))
            if len(seen) == 50:
                break
        await later
        return seen

    assert asyncio.run(main()) == list(range(50))
    assert receiver.stats["messages"] == 50


def test_a_time_limit(receiver, sender):
    async def main():
        assert await receiver.receive_async(0) is None
        assert await receiver.receive_async(0.01) is None
        send(sender, 1, 2)
        assert token(await receiver.receive_async(0)) == 1
        assert token(await receiver.receive_async()) == 2
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None"):
            await receiver.receive_async("1")
        with pytest.raises(ValueError, match="timeout = -1 is not"):
            await receiver.receive_async(-1)

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before it is sent", "after it is sent"])
def test_a_cancelled_task_loses_no_message(receiver, sender, when):
    """One that waits in ``asyncio.to_thread`` swallows the next message when it is cancelled."""

    async def main():
        for number in range(200):
            task = asyncio.ensure_future(receiver.receive_async())
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if when == "after it is sent":
                send(sender, number)
                for _ in range(number % 7):
                    await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert token(await task) == number
                continue
            if when == "before it is sent":
                send(sender, number)
            assert token(receiver.receive(1.0)) == number

    asyncio.run(main())
    assert receiver.stats["messages"] == 200


def test_wait_for_loses_no_message(receiver, sender):
    async def main():
        for number in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(receiver.receive_async(), 0.002)
            send(sender, number)
            assert token(await asyncio.wait_for(receiver.receive_async(), 10)) == number

    asyncio.run(main())


def test_other_tasks_run_beside_a_queue_that_is_never_empty(receiver, sender):
    async def main():
        send(sender, *range(100))
        beside = 0

        async def other():
            nonlocal beside
            while True:
                beside += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(100):
            await receiver.receive_async()
        task.cancel()
        return beside

    assert asyncio.run(main()) >= 50


def test_several_tasks_share_a_receiver(receiver, sender):
    async def main():
        tasks = [asyncio.ensure_future(receiver.receive_async()) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert len(watchers()) == 1
        send(sender, *range(5))
        return sorted(map(token, await asyncio.gather(*tasks)))

    assert asyncio.run(main()) == list(range(5))


@pytest.mark.parametrize("end", ["close", "remove"])
def test_an_end_wakes_those_who_wait(receiver, end):
    async def main():
        async def steps():
            return [step async for step in receiver]

        iterating, waiting = asyncio.ensure_future(steps()), asyncio.ensure_future(receiver.receive_async())
        await asyncio.sleep(0.01)
        getattr(receiver, end)()
        with pytest.raises(fp.ReceiverClosed if end == "close" else (fp.QueueRemoved, fp.ReceiverClosed)):
            await asyncio.wait_for(waiting, 10)
        for again in iterating, asyncio.ensure_future(steps()):
            if end == "remove":
                assert await asyncio.wait_for(again, 10) == []
            else:
                with pytest.raises(fp.ReceiverClosed):
                    await asyncio.wait_for(again, 10)

    asyncio.run(main())
    assert receiver.closed


def test_a_queue_that_another_program_removes(receiver):
    async def main():
        task = asyncio.ensure_future(anext_of(receiver))
        await asyncio.sleep(0.01)
        queues.remove_queue(receiver.msqid)
        with pytest.raises(fp.QueueRemoved):
            await asyncio.wait_for(task, 10)

    asyncio.run(main())


async def anext_of(receiver):
    async for step in receiver:
        return step


def test_a_malformed_message_is_raised_and_the_next_comes(receiver, sender):
    async def main():
        sysv_ipc.MessageQueue(receiver.key).send(b"abc")
        send(sender, 7)
        with pytest.raises(fp.MalformedMessage):
            await anext_of(receiver)
        return token(await receiver.receive_async())

    assert asyncio.run(main()) == 7


def test_the_thread_ends_when_nobody_waits(receiver, sender, monkeypatch):
    monkeypatch.setattr(aio, "_IDLE_S", 0.01)

    async def main():
        assert watchers() == []
        for number in range(3):
            assert await receiver.receive_async(0.001) is None
            for thread in watchers():  # none on a machine so busy that it has ended by now
                await asyncio.get_running_loop().run_in_executor(None, thread.join, 20)
            assert watchers() == []
            send(sender, number)
            assert token(await receiver.receive_async()) == number

    asyncio.run(main())
