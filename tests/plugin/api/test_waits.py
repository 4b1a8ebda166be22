"""The lighter wait beside asyncio's, at asyncio's queue."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api.chunks.wait_for import Asyncio, wait_for
from tests.lib.rows import each
from tests.lib.search import examples

WAYS = (asyncio.wait_for, wait_for)
ACTIONS = ("put", "wait", "wait long", "cancel first", "cancel last")


async def played(wait, actions):
    """What is seen of a queue by whoever does these things."""
    queue, told, tasks = asyncio.Queue(), [], []

    async def taker(number, limit):
        try:
            told.append((number, await (wait(queue.get(), limit) if limit else queue.get())))
        except asyncio.CancelledError:
            told.append((number, "cancelled"))
            raise

    for number, action in enumerate(actions):
        if action == "put":
            queue.put_nowait(number)
        elif action.startswith("wait"):
            tasks.append(asyncio.ensure_future(taker(number, 50 if action == "wait long" else None)))
        elif tasks:
            tasks[0 if action == "cancel first" else -1].cancel()
        await turns()
        told.append(queue.qsize())
    for task in tasks:
        task.cancel()
        await turns()
    return told, [task.cancelled() for task in tasks], queue.qsize()


async def turns():
    for _ in range(6):  # asyncio's own makes a task for each wait
        await asyncio.sleep(0)


@examples(25)
@given(st.lists(st.sampled_from(ACTIONS), max_size=25))
@example(["wait", "wait long", "put", "cancel first"])
@example(["wait long", "wait long", "put", "put", "cancel first", "wait"])
def test_the_same_is_seen(actions):
    expected, actual = (asyncio.run(played(way, actions)) for way in WAYS)
    assert expected == actual


@pytest.mark.realtime
@each("timeout, seconds", [(None, 0.02), (0, 0), (0, 1), (-1, 0), (0.02, 1), (5, 0.02), (5, 0)])
def test_any_awaitable_and_any_limit(timeout, seconds):
    async def run(wait):
        try:
            return await wait(asyncio.sleep(seconds, "done"), timeout)
        except asyncio.TimeoutError:
            return "late"

    assert asyncio.run(run(wait_for)) == asyncio.run(run(asyncio.wait_for))


@pytest.mark.realtime
def test_nothing_is_lost_when_a_limit_and_an_item_meet():
    """Every item that is put is got once and in order, although waits for some are given up."""
    limit, items = 0.0005, 200

    async def run():
        queue, got, missed = asyncio.Queue(), [], 0

        async def give():
            for number in range(items):
                await asyncio.sleep(limit)
                queue.put_nowait(number)

        giver = asyncio.ensure_future(give())
        while len(got) < items:
            try:
                got.append(await wait_for(queue.get(), limit))
            except asyncio.TimeoutError:
                missed += 1
        await giver
        return got, missed

    got, missed = asyncio.run(run())
    assert got == list(range(items))
    assert missed


def late_and(then):
    """What becomes of a wait when something happens in the very turn of its timeout; its queue's size."""

    async def run():
        queue, loop = asyncio.Queue(), asyncio.get_running_loop()
        waiting = asyncio.ensure_future(wait_for(queue.get(), 0.05))
        await asyncio.sleep(0)
        end = loop.time() + 0.05  # behind the timeout
        loop.call_at(end, then, waiting, queue)
        while loop.time() < end:  # both are due in the next turn
            pass
        await asyncio.wait([waiting])
        return "cancelled" if waiting.cancelled() else repr(waiting.exception()), queue.qsize()

    return asyncio.run(run())


def test_an_item_in_the_turn_of_the_timeout_stays():
    assert late_and(lambda waiting, queue: queue.put_nowait("x")) == ("TimeoutError()", 1)


@pytest.mark.skipif(not hasattr(asyncio.Task, "cancelling"), reason="Python 3.11 and later")
def test_who_is_cancelled_in_the_turn_of_the_timeout_is_cancelled():
    assert late_and(lambda waiting, queue: waiting.cancel()) == ("cancelled", 0)


@pytest.mark.skipif(not hasattr(asyncio.Task, "cancelling"), reason="Python 3.11 and later")
def test_a_timeout_is_no_cancellation():
    async def run():
        with pytest.raises(asyncio.TimeoutError):
            await wait_for(asyncio.Queue().get(), 0.01)
        return asyncio.current_task().cancelling()

    assert asyncio.run(run()) == 0


def test_the_module_has_everything_else():
    module = Asyncio("asyncio")
    assert module.wait_for is wait_for
    assert module.CancelledError is asyncio.CancelledError
    assert module.sleep is asyncio.sleep
