"""The lighter wait beside asyncio's, at asyncio's queue."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api.chunks.wait_for import Asyncio, wait_for
from tests.lib.rows import each
from tests.lib.search import examples
from tools.accept import virtual_time

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


def run_ahead(main):
    """Run something in a loop whose time passes where nothing else happens."""
    with virtual_time.Loop() as loop:
        return loop.run_until_complete(main)


class Awaitable:
    def __await__(self):
        return asyncio.sleep(8, "done").__await__()


async def nested():
    return await asyncio.wait_for(asyncio.sleep(30), 7)


async def from_a_thread(loop):
    future = loop.run_in_executor(None, int, "none")
    while not future.done():
        await asyncio.sleep(0)  # no time passes
    return await future


LATER = [
    lambda loop: asyncio.sleep(8, "done"),
    lambda loop: asyncio.sleep(30, "done"),
    lambda loop: asyncio.sleep(0, "done"),
    lambda loop: asyncio.sleep(0, (1, 2)),
    lambda loop: asyncio.Queue().get(),
    lambda loop: asyncio.sleep(0, StopAsyncIteration()),
    lambda loop: Awaitable(),
    lambda loop: loop.create_task(asyncio.sleep(8, "done")),
    lambda loop: loop.create_future(),
    lambda loop: nested(),
    from_a_thread,
]


@each("make, timeout", [(make, timeout) for make in LATER for timeout in (None, 0, -1, 3, 5, 10)])
def test_any_awaitable_and_any_limit(make, timeout):
    async def run(wait):
        loop = asyncio.get_running_loop()

        async def waited():
            try:
                found = repr(await wait(make(loop), timeout))
            except (asyncio.TimeoutError, ValueError) as error:
                return type(error)
            await asyncio.sleep(20)  # beyond the limit, which is no limit of what comes after the wait
            return found

        task = asyncio.ensure_future(waited())
        await asyncio.sleep(60)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        return "cancelled" if task.cancelled() else task.result()

    assert run_ahead(run(wait_for)) == run_ahead(run(asyncio.wait_for))


def late_and(then):
    """What becomes of a wait when something happens in the very turn of its timeout; its queue's size."""

    async def run():
        queue, loop = asyncio.Queue(), asyncio.get_running_loop()
        waiting = asyncio.ensure_future(wait_for(queue.get(), 9.9))
        await turns()
        # Just before our look, which is every half a second: a loop runs both in one turn.
        loop.call_later(10 - 1e-10, then, waiting, queue)
        await asyncio.wait([waiting])
        return "cancelled" if waiting.cancelled() else repr(waiting.exception()), queue.qsize()

    return run_ahead(run())


@each(
    "then, end",
    [
        (lambda waiting, queue: None, ("TimeoutError()", 0)),
        (lambda waiting, queue: queue.put_nowait("x"), ("TimeoutError()", 1)),
        (lambda waiting, queue: waiting.cancel(), ("cancelled", 0)),
    ],
)
def test_what_happens_in_the_turn_of_the_timeout(then, end):
    """An item stays in the queue, and who is cancelled is cancelled."""
    if end[0] == "cancelled" and not hasattr(asyncio.Task, "cancelling"):
        return  # Python 3.10 does not count cancellations
    assert late_and(then) == end


def test_a_timeout_is_no_cancellation_and_many_wait_at_once():
    async def run():
        loop, queues = asyncio.get_running_loop(), [asyncio.Queue() for _ in range(5)]
        waiting = [loop.create_task(wait_for(queue.get(), 10)) for queue in queues]
        await turns()
        await asyncio.sleep(6)
        queues[1].put_nowait("first")
        waiting.append(loop.create_task(wait_for(queues[1].get(), 10)))  # behind the first of this queue
        await turns()
        waiting[2].cancel()
        await asyncio.sleep(12)
        ends = ["cancelled" if one.cancelled() else repr(one.exception() or one.result()) for one in waiting]
        late = "TimeoutError()"
        assert ends == [late, "'first'", "cancelled", late, late, late]

        async def counts():
            with pytest.raises(asyncio.TimeoutError):
                await wait_for(asyncio.Queue().get(), 10)
            return asyncio.current_task().cancelling() if hasattr(asyncio.Task, "cancelling") else 0

        return await loop.create_task(counts())

    assert run_ahead(run()) == 0


def test_the_module_has_everything_else():
    module = Asyncio("asyncio")
    assert module.wait_for is wait_for
    assert module.CancelledError is asyncio.CancelledError
    assert module.sleep is asyncio.sleep
