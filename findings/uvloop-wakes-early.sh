#!/usr/bin/env bash
# Guess: asyncio.sleep(t) takes at least t on every event loop.
# Seen: uvloop 0.23.0 counts in whole milliseconds, rounded to the nearest: a sleep of 0.4 ms does not wait at all,
# one of 1.4 ms ends 0.3 ms early, and often earlier.  asyncio's own loop is never early.
# Why it matters: API servers run on uvloop.  A loop that polls every 0.4 ms takes a whole processor there.
. "$(dirname "$0")/in-a-temporary-folder" uvloop==0.23.0
python > seen <<'P'
import asyncio
import time

import uvloop


async def shortest(seconds):
    found = []
    for _ in range(200):
        begin = time.perf_counter()
        await asyncio.sleep(seconds)
        found.append(time.perf_counter() - begin)
    return min(found)


for milliseconds, limit, word in ((0.4, 0.1, "at once"), (1.4, 1.3, "early"), (2.4, 2.3, "early")):
    for name, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
        took = run(shortest(milliseconds / 1000)) * 1000
        print(name, f"sleep of {milliseconds} ms:", word if took < limit else "not early")
P
seen_is <<'S'
asyncio sleep of 0.4 ms: not early
uvloop sleep of 0.4 ms: at once
asyncio sleep of 1.4 ms: not early
uvloop sleep of 1.4 ms: early
asyncio sleep of 2.4 ms: not early
uvloop sleep of 2.4 ms: early
S
