"""The queue that a stream waits at, beside asyncio's."""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api import stream_queue
from fd_postproc.fastdeploy.api.chunks._chunks import Next
from fd_postproc.fastdeploy.api.chunks.wait_for import wait_for
from tests.lib.races import nothing_is_lost

WAYS = {"asyncio": (asyncio.Queue, asyncio.wait_for), "ours": (stream_queue.Queue, wait_for)}
ACTIONS = ("put", "wait", "wait long", "cancel first", "cancel last", "turn", "take", "done")


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


async def played(make, wait, actions):
    """What is seen of a queue by whoever does these things."""
    queue, told, tasks = make(), [], []

    async def taker(number, limit):
        try:
            told.append((number, await (wait(queue.get(), limit) if limit else queue.get())))
        except asyncio.CancelledError:
            told.append((number, "cancelled"))
            raise

    for number, action in enumerate(actions):
        if action == "put":
            queue.put_nowait((number,) if number % 2 else [number])
        elif action.startswith("wait"):
            limit = 50 if action == "wait long" else None
            tasks.append(asyncio.ensure_future(taker(number, limit)))
        elif action.startswith("cancel") and tasks:
            tasks[0 if action == "cancel first" else -1].cancel()
        elif action == "turn":
            for _ in range(6):  # asyncio's own makes a task for each wait
                await asyncio.sleep(0)
        elif action == "take":
            try:
                told.append(queue.get_nowait())
            except asyncio.QueueEmpty:
                told.append("empty")
        elif action == "done":
            try:
                queue.task_done()
            except ValueError as error:
                told.append(str(error))
        told.append((queue.qsize(), queue.empty(), queue.full()))
    for task in tasks:
        task.cancel()
        for _ in range(6):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    return told, [task.cancelled() for task in tasks], queue.qsize()


@given(st.lists(st.sampled_from(ACTIONS), max_size=25))
def test_the_same_is_seen(actions):
    settled = [one for action in actions for one in (action, "turn")]
    expected, actual = (asyncio.run(played(*way, settled)) for way in WAYS.values())
    assert expected == actual


@given(st.lists(st.sampled_from(ACTIONS[:-2]), max_size=25))
@example(["wait", "wait", "turn", "put", "cancel first", "turn"])  # told, and gone: the second gets it
@example(["wait", "wait", "turn", "put", "put", "cancel first", "turn"])
def test_the_same_without_a_turn_between(actions):
    """Without limits: a task of asyncio's own ``wait_for`` is some turns late."""
    bare = ["wait" if action == "wait long" else action for action in actions]
    expected, actual = (asyncio.run(played(*way, bare)) for way in WAYS.values())
    assert expected == actual


def test_each_wait_has_its_own_limit(way):
    make, wait = way

    async def one(queue, limit):
        began = asyncio.get_running_loop().time()
        try:
            return await wait(queue.get(), limit)
        except asyncio.TimeoutError:
            return round(asyncio.get_running_loop().time() - began, 1)

    async def run():
        queue = make()
        waits = [asyncio.ensure_future(one(queue, limit)) for limit in (0.6, 0.2, 0.4)]
        await asyncio.sleep(0.05)
        queue.put_nowait("first")
        return await asyncio.gather(*waits), await one(queue, 0.1)

    assert asyncio.run(run()) == (["first", 0.2, 0.4], 0.1)


def test_a_stream_sets_one_timer():
    async def run():
        loop, set_at = asyncio.get_running_loop(), []
        call_at = loop.call_at
        loop.call_at = lambda when, *rest, **more: set_at.append(when) or call_at(when, *rest, **more)
        queue = stream_queue.Queue()
        for number in range(50):
            loop.call_soon(queue.put_nowait, number)
            assert await wait_for(queue.get(), 10) == number
        loop.call_at = call_at
        return len(set_at)

    assert asyncio.run(run()) == 1


def test_a_limit_that_is_reached_after_others_were_not():
    """The timer of an earlier wait is due before: it is set again."""

    async def run():
        queue, loop = stream_queue.Queue(), asyncio.get_running_loop()
        loop.call_later(0.15, queue.put_nowait, "x")
        assert await wait_for(queue.get(), 0.3) == "x"
        began = loop.time()
        with pytest.raises(asyncio.TimeoutError):
            await wait_for(queue.get(), 0.3)
        return loop.time() - began

    assert 0.29 < asyncio.run(run()) < 3


def test_nothing_is_lost_when_a_limit_and_an_item_meet():
    async def run():
        await nothing_is_lost(stream_queue.Queue(), wait_for)

    asyncio.run(run())


def test_a_queue_that_nobody_has_is_freed():
    """Its timer is not due yet."""

    async def run():
        queue = stream_queue.Queue()
        asyncio.get_running_loop().call_soon(queue.put_nowait, "x")
        await wait_for(queue.get(), 3600)
        gone = weakref.ref(queue)
        del queue
        gc.collect()
        return gone()

    assert asyncio.run(run()) is None


def test_other_users_get_what_they_know(way):
    make, _ = way

    async def run():
        queue = make()
        assert isinstance(queue, asyncio.Queue)
        await queue.put("a")
        first = asyncio.ensure_future(queue.get())
        second = asyncio.create_task(queue.get())
        third = asyncio.wait_for(queue.get(), 5)
        await asyncio.sleep(0)
        for item in ("b", "c"):
            queue.put_nowait(item)
        told = [await first, await second, await third]
        queue.get().close()  # a coroutine that is not awaited
        joined = asyncio.ensure_future(queue.join())
        for _ in range(3):
            await asyncio.sleep(0)
            told.append(joined.done())
            queue.task_done()
        await joined
        return told

    assert asyncio.run(run()) == ["a", "b", "c", False, False, False]


@pytest.mark.skipif(not hasattr(asyncio.Queue, "shutdown"), reason="Python 3.13 and later")
def test_shutting_down(way):
    make, wait = way

    async def run():
        queue = make()
        waiting = asyncio.ensure_future(wait(queue.get(), 50))
        for _ in range(4):
            await asyncio.sleep(0)
        queue.shutdown()
        told = []
        for call in (lambda: waiting, queue.get, lambda: queue.put("x")):
            try:
                await call()
            except asyncio.QueueShutDown:
                told.append(True)
        try:
            queue.put_nowait("x")
        except asyncio.QueueShutDown:
            told.append(True)
        return told

    assert asyncio.run(run()) == [True] * 4


def manager(make):
    """FastDeploy's module: a name, and a class that makes queues."""
    space = {"asyncio": asyncio}
    exec(f"class DealerConnectionManager:\n    def get_connection(self):\n        return {make}", space)
    return SimpleNamespace(**space), space


def test_the_manager_makes_ours():
    module, space = manager("asyncio.Queue(), asyncio.Queue(3), asyncio.Lock()")
    restore = stream_queue.install(module)
    space["asyncio"] = module.asyncio
    ours, limited, lock = module.DealerConnectionManager().get_connection()
    assert type(ours) is stream_queue.Queue
    assert type(limited) is asyncio.Queue
    assert limited.maxsize == 3
    assert type(lock) is asyncio.Lock
    restore()
    assert module.asyncio is asyncio


def test_it_is_installed_where_a_loop_runs():
    async def run():
        stream_queue.install(manager("asyncio.Queue()")[0])

    asyncio.run(run())


def test_what_is_thrown_in_goes_through():
    for thrown in (ValueError("x"), ValueError):
        waiting = stream_queue.Queue().get()
        assert type(waiting) is Next
        with pytest.raises(ValueError, match=r"x|"):
            waiting.throw(thrown)
