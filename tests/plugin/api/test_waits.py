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


class Ahead(asyncio.SelectorEventLoop):
    """A loop whose clock a test sets ahead."""

    ahead = 0.0

    def time(self):
        return super().time() + self.ahead

    async def skip(self, seconds):
        """Let this time go by."""
        self.ahead += seconds
        await turns()


def run_ahead(main):
    loop = Ahead()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


class Awaitable:
    def __await__(self):
        return asyncio.sleep(8, "done").__await__()


async def nested():
    return await asyncio.wait_for(asyncio.sleep(30), 7)


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
    lambda loop: loop.run_in_executor(None, int, "none"),
]


@each("make, timeout", [(make, timeout) for make in LATER for timeout in (None, 0, -1, 3, 5, 10)])
def test_any_awaitable_and_any_limit(make, timeout):
    async def run(wait):
        loop = asyncio.get_running_loop()

        async def waited():
            try:
                return repr(await wait(make(loop), timeout))
            except (asyncio.TimeoutError, ValueError) as error:
                return type(error)

        task = asyncio.ensure_future(waited())
        await asyncio.sleep(0.01)  # an executor's thread has answered by then, or is waited for
        for _ in range(60):
            await loop.skip(1)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        return "cancelled" if task.cancelled() else task.result()

    assert run_ahead(run(wait_for)) == run_ahead(run(asyncio.wait_for))


def late_and(then):
    """What becomes of a wait when something happens in the very turn of its timeout; its queue's size."""

    async def run():
        queue, loop = asyncio.Queue(), asyncio.get_running_loop()
        waiting = asyncio.ensure_future(wait_for(queue.get(), 10))
        await turns()
        loop.call_later(9, then, waiting, queue)
        await loop.skip(11)  # the loop runs what is due in the order of its times
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
        await loop.skip(6)
        queues[1].put_nowait("first")
        waiting.append(loop.create_task(wait_for(queues[1].get(), 10)))  # behind the first of this queue
        await turns()
        waiting[2].cancel()
        await loop.skip(6)
        await loop.skip(6)
        ends = []
        for one in waiting:
            ends.append("cancelled" if one.cancelled() else repr(one.exception() or one.result()))
        late = "TimeoutError()"
        assert ends == [late, "'first'", "cancelled", late, late, late]

        async def counts():
            with pytest.raises(asyncio.TimeoutError):
                await wait_for(asyncio.Queue().get(), 10)
            return asyncio.current_task().cancelling() if hasattr(asyncio.Task, "cancelling") else 0

        counting = loop.create_task(counts())
        await turns()
        await loop.skip(11)
        return await counting

    assert run_ahead(run()) == 0


def test_the_module_has_everything_else():
    module = Asyncio("asyncio")
    assert module.wait_for is wait_for
    assert module.CancelledError is asyncio.CancelledError
    assert module.sleep is asyncio.sleep
