"""A time limit and an item of a queue that meet, again and again."""

import asyncio

LIMIT = 0.0005
"""Seconds: of the wait, and between two items."""


async def nothing_is_lost(queue, wait_for, items=200):
    """Check that every item that is put is got once and in order, although waits for some are given up."""
    got, missed = [], 0

    async def give():
        for number in range(items):
            await asyncio.sleep(LIMIT)
            queue.put_nowait(number)

    giver = asyncio.ensure_future(give())
    while len(got) < items:
        try:
            got.append(await wait_for(queue.get(), LIMIT))
        except asyncio.TimeoutError:
            missed += 1
    await giver
    assert got == list(range(items))
    assert missed
