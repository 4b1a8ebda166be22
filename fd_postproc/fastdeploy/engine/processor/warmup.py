"""Freezes Python's garbage collector after warm-up, so that it skips permanent objects.

With Paddle imported a full collection takes a tenth of a second, in the middle of a step.  ``gc.freeze``
takes everything that is there out of the collector's sight.
"""

from __future__ import annotations

import gc
import threading

from ....support.environment import GC, is_on

STEPS = 64  # steps with work until everything that is made once has been made

_lock = threading.Lock()
_frozen = False


class Warmup:
    """Counter of steps with work; at its limit it freezes the collector, once in a process."""

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps if is_on(GC) else 0

    def begin(self) -> None:
        """Collect the young garbage before the first request; a later freeze would keep it for good."""
        if self.left:
            gc.collect(1)

    def step(self) -> bool:
        """Count a step with work, while `left` is not 0; True if it froze the collector."""
        if self.left:
            self.left -= 1
            if not self.left:
                return _freeze_once()
        return False


def _freeze_once() -> bool:
    global _frozen
    with _lock:
        if _frozen:
            return False
        _frozen = True
    gc.freeze()
    return True
