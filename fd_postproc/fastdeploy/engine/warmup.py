"""Python's garbage collector after warm-up: what lives forever is not walked through again and again.

With Paddle imported a full collection takes a tenth of a second, in the middle of a step.  ``gc.freeze``
takes everything that is there out of the collector's sight.
"""

from __future__ import annotations

import gc
import threading

from ...environment import GC

STEPS = 64  # steps with work until everything that is made once has been made

_lock = threading.Lock()
_frozen = False


class Warmup:
    """Counts steps; the first that reaches the number freezes, once in a process.

    Parameters
    ----------
    steps : int, optional
        Steps with work until then.
    """

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps if GC.text.strip().lower() != "off" else 0

    def begin(self) -> None:
        """Collect garbage before the first request comes, when nobody waits: frozen, it would stay."""
        if self.left:
            gc.collect()

    def step(self) -> bool:
        """A step with work is done; True if this one froze.  Call it while `left` is not 0."""
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
