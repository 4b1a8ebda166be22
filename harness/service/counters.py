"""The stand-in worker's counters, and the interval of its steps, in a file that both map."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

SIZE = 32
SPRINT = -0.5
WORK = -1.5


class Counters:
    """See the shim's `gpu_worker`."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    def read(self) -> tuple[int, int, int]:
        """Steps so far, requests of the last one, tokens so far."""
        return struct.unpack("<3q", self._map[:24])

    def pace(self, interval: float) -> None:
        """Seconds from a step to the next; 0: as fast as the queue takes them.

        `SPRINT`: as fast, with as many tokens as a message of drafts takes.  -1: no steps, only tasks, and
        sleep.  `WORK`: no steps, and all the CPU time of a processor.  -2: every request ends with its next
        token.
        """
        self._map[24:] = struct.pack("<d", interval)
