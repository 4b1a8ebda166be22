"""What the worker waits for the task queue between two steps, and the process that answers it."""

import mmap
import os
import struct
import time
from pathlib import Path

from . import threads

ROOM = 1 << 16
"""Waits that are kept: 4 bytes each, in seconds, behind the 8 bytes that count all of them."""


def name_manager(module):
    """Have the engine's clocks tell the CPU time of the task queue's manager, too."""
    queue = module.EngineWorkerQueue
    construct = queue.__init__

    def __init__(self, *arguments, **named):
        construct(self, *arguments, **named)
        if self.is_server:
            threads.beside["manager"] = self.manager._process.pid

    queue.__init__ = __init__


def time_worker(queue):
    """Write down how long each question of the worker to its task queue takes."""
    path = Path(os.environ["FD_SERVICE_COUNTERS"]).with_name("waits")
    path.write_bytes(bytes(8 + 4 * ROOM))
    with path.open("r+b") as file:
        waits = mmap.mmap(file.fileno(), 0)
    count = 0

    def timed(ask):
        def asks(self):
            nonlocal count
            began = time.perf_counter()
            answer = ask(self)
            place = 8 + 4 * (count % ROOM)
            waits[place : place + 4] = struct.pack("<f", time.perf_counter() - began)
            count += 1
            waits[:8] = struct.pack("<q", count)
            return answer

        return asks

    for name in ("exist_tasks", "get_tasks"):
        setattr(queue, name, timed(getattr(queue, name)))
