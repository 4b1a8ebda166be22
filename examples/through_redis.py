"""Steps that survive restarts: a Redis stream between the two sides.

A queue keeps steps until its host restarts, and for one host.  Where each step matters, a broker keeps them:
here a stream of Redis (``pip install redis``; ``redis-server --appendonly yes`` keeps it on disk, too).

    python examples/through_redis.py redis://localhost:6379
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import redis

import fd_postproc as fp

STREAM, GROUP = "steps", "engine"


def send(broker: redis.Redis, step: fp.Step) -> None:
    """Returns when Redis has the step."""
    broker.xadd(STREAM, {"frame": fp.encode(step, "compact")})


def receive(broker: redis.Redis, name: str) -> Iterator[fp.Step]:
    """Steps in order; first those that this reader had in hand when it was killed."""
    with contextlib.suppress(redis.ResponseError):  # it is there
        broker.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    after = "0"
    while True:
        found = broker.xreadgroup(GROUP, name, {STREAM: after}, count=64, block=1000)
        entries = found[0][1] if found else []
        for number, fields in entries:
            yield fp.decode(fields[b"frame"], "plain", mtype=2)
            broker.xack(STREAM, GROUP, number)  # after the work: a step may come twice, never not at all
            broker.xdel(STREAM, number)
        if not entries and after == ">":
            return
        if not entries:
            after = ">"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    broker = redis.Redis.from_url(sys.argv[1])
    for k in range(3):
        send(broker, fp.Step.from_arrays("plain", [1], [k]))
    for step in receive(broker, "reader-1"):
        print(step.token_ids(0))
