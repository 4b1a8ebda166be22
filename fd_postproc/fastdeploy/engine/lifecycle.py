"""What happens between construction and the first step: stale messages, the collector, the quick ways."""

from __future__ import annotations

import weakref
from typing import Any

from . import quick_ways
from .receiving import Receiving
from .stale import StaleMessages
from .warmup import Warmup


class Lifecycle(Receiving):
    """Construction and start.  An object made by ``__new__`` has neither `stale` nor `warmup`."""

    stale: StaleMessages | None = None

    def _get_ready(self) -> None:
        """The object was constructed, and is to receive."""
        self.stale = StaleMessages(self.channel, self.cfg, self.fd.llm_logger)
        self.counters.stale += self.stale.at_construction()
        self.warmup = Warmup()
        self._let_finalizer_go()

    def _let_finalizer_go(self) -> None:
        """Clean up with this object: FastDeploy's finalizer, a method of it, keeps it alive for good."""
        finalizer, executor = getattr(self, "_finalizer", None), getattr(self, "executor", None)
        if isinstance(finalizer, weakref.finalize) and executor is not None:
            finalizer.detach()
            masks = getattr(self, "sampling_mask_zmq_server", None)
            self._finalizer = weakref.finalize(self, _clean_up, executor, masks)

    def run(self) -> None:
        """Start the token thread."""
        if self.stale is not None:
            self.counters.stale += self.stale.at_run()
        if self.warmup is not None:
            self.warmup.begin()
            self.best_effort("the quick ways", quick_ways.tell, self)
        super().run()  # type: ignore[safe-super]


def _clean_up(executor: Any, masks: Any) -> None:
    """What a token processor leaves; `masks` is FastDeploy's server of the sampling masks, if it has one.

    Its socket is closed first: the end of a ZeroMQ context waits for every open socket, and in a garbage
    cycle nobody says which of the two goes first.
    """
    try:
        if masks is not None:
            masks.close()
    finally:
        executor.shutdown(wait=False)
