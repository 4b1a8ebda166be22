"""The lighter wait beside asyncio's."""

import asyncio

import pytest

from fd_postproc.fastdeploy.api.chunks.wait_for import Asyncio, wait_for
from fd_postproc.fastdeploy.api.stream_queue import Queue


async def later(seconds, value="done"):
    await asyncio.sleep(seconds)
    return value


@pytest.mark.parametrize("timeout", [None, 0, -1, 5])
@pytest.mark.parametrize("make", [later, lambda seconds: Queue().get()])
def test_what_is_not_ours_is_asyncios(timeout, make):
    """Another awaitable, or a timeout that is none."""

    async def run(wait):
        try:
            return await wait(make(0), timeout and timeout / 50)
        except TimeoutError:
            return "late"

    if timeout is not None or make is later:
        assert asyncio.run(run(wait_for)) == asyncio.run(run(asyncio.wait_for))


def test_the_module_has_everything_else():
    module = Asyncio(wait_for=wait_for)
    assert module.wait_for is wait_for
    assert module.CancelledError is asyncio.CancelledError
    assert module.sleep is asyncio.sleep
