"""The lighter wait beside asyncio's."""

import asyncio

import pytest

from fd_postproc.fastdeploy.api import waits
from tests.lib.races import nothing_is_lost

pytestmark = pytest.mark.skipif(not waits.NEEDED, reason="asyncio's own is light, or nothing can be done")


async def later(seconds, value="done"):
    await asyncio.sleep(seconds)
    return value


@pytest.fixture(params=["asyncio", "ours"])
def wait_for(request):
    return asyncio.wait_for if request.param == "asyncio" else waits.wait_in_task


def test_what_comes_in_time(wait_for):
    assert asyncio.run(wait_for(later(0), 5)) == "done"


def test_what_comes_too_late(wait_for):
    cancelled = []

    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def run():
        with pytest.raises(TimeoutError):
            await wait_for(wait(), 0.01)
        assert asyncio.current_task().cancelling() == 0
        return await wait_for(later(0), 5)

    assert asyncio.run(run()) == "done"
    assert cancelled == [True]


def test_who_waits_is_cancelled(wait_for):
    async def run():
        task = asyncio.ensure_future(wait_for(later(60), 30))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_what_is_raised_goes_through(wait_for):
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(wait_for(fail(), 5))


def test_nothing_is_lost_from_a_queue():
    """However a timeout and an item meet; asyncio's own may lose some before 3.12."""

    async def run():
        await nothing_is_lost(asyncio.Queue(), waits.wait_in_task)

    asyncio.run(run())


@pytest.mark.parametrize("timeout", [None, 0, -1])
def test_other_timeouts_are_asyncios(timeout):
    async def run():
        try:
            return await waits.wait_in_task(later(0), timeout)
        except TimeoutError:
            return "late"

    assert asyncio.run(run()) == ("done" if timeout is None else "late")


def test_the_module_has_everything_else():
    module = waits.Asyncio(wait_for=waits.wait_for)
    assert module.wait_for is waits.wait_for
    assert module.CancelledError is asyncio.CancelledError
    assert module.sleep is asyncio.sleep
