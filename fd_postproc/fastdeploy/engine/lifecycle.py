"""What happens between construction and the first step: stale messages, the collector, the quick ways."""

from __future__ import annotations

import weakref
from typing import Any

from ..._version import __version__
from ...environment import PEER
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...queues import queue_id_from_env
from . import quick_ways
from .health import Health
from .messages import Packing
from .send_loop import SendLoop
from .stale import StaleMessages
from .wake_up import WakeUp
from .warmup import Warmup
from .watch import Watch


class Lifecycle(Health):
    """Construction and start.  An object made by ``__new__`` has none of these."""

    stale: StaleMessages | None = None
    wake_up: WakeUp | None = None
    packing: Packing | None = None
    send_loop: SendLoop | None = None
    watch: Watch | None = None
    watch_period = 0.5
    """Seconds between two looks at the health."""

    def _get_ready(self) -> None:
        """The object was constructed, and is to receive."""
        if not self.receives_objects:  # a socket keeps nothing of an earlier run
            self.stale = StaleMessages(self.channel, self.cfg, self.fd.llm_logger)
            self.counters.stale += self.stale.at_construction()
        self.warmup = Warmup()
        self._let_finalizer_go()
        self.best_effort("the loop that sends", self._take_over_sending)

    def _let_finalizer_go(self) -> None:
        """Clean up with this object: FastDeploy's finalizer, a method of it, keeps it alive for good."""
        finalizer, executor = getattr(self, "_finalizer", None), getattr(self, "executor", None)
        if isinstance(finalizer, weakref.finalize) and executor is not None:
            finalizer.detach()
            masks = getattr(self, "sampling_mask_zmq_server", None)
            self._finalizer = weakref.finalize(self, _clean_up, executor, masks)
        if self.zmq_server is not None:
            # Not at the interpreter's exit: the token thread may be waiting in it.
            weakref.finalize(self, self.zmq_server.close).atexit = False

    def run(self) -> None:
        """Start the token thread."""
        if self.stale is not None:
            self.counters.stale += self.stale.at_run()
        if self.warmup is not None:
            self.warmup.begin()
            self.best_effort("the flight recorder", self._begin_recording)
            self.best_effort("the wait in the scheduler", self._wait_for_results)
            self.best_effort("packing results", self._pack_results)
            self.best_effort("the quick ways", quick_ways.tell, self)
        super().run()  # type: ignore[safe-super]
        if self.warmup is not None:
            self.best_effort("the watch over the health", self._watch_health)

    def _watch_health(self) -> None:
        """Tell of the health when it changes."""
        self.watch = Watch(self, self.watch_period)
        weakref.finalize(self, self.watch.end)
        self.watch.begin()

    def _begin_recording(self) -> None:
        self.recorder = Recorder.begin("engine", self.channel, queue_id_from_env(), self.fd.llm_logger)
        self.counters.stages.ring = self.recorder.ring
        peer = PEER.text or "nothing but FastDeploy's messages"
        self.recorder.event(
            Kind.ACTIVE, text=f"fd_postproc {__version__}, {self.channel}, understands {peer}"
        )
        if self.counters.stale:
            self.recorder.event(Kind.STALE, -1, self.counters.stale)

    def _wait_for_results(self) -> None:
        """Let whoever sends results wait in the scheduler until there are some."""
        self.wake_up = WakeUp(self.cached_generated_tokens, self.plan)
        weakref.finalize(self, self.wake_up.end)
        text = self.wake_up.begin()
        if text:
            self.fd.llm_logger.info(f"fd_postproc: {text}")

    def _take_over_sending(self) -> None:
        """Send results in one go; the thread that sends may begin before the token thread."""
        self.send_loop = SendLoop(self.plan)
        weakref.finalize(self, self.send_loop.end)
        self.send_loop.begin()

    def _pack_results(self) -> None:
        """Pack results without dictionaries, where FastDeploy sends them."""
        self.packing = Packing(self.plan)
        weakref.finalize(self, self.packing.end)
        self.packing.begin()

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop; what `run` has changed about FastDeploy is as it was before."""
        if self.watch is not None:  # first: it would tell that the token thread has ended
            self.watch.end()
        super().stop(timeout)
        for change in (self.wake_up, self.packing, self.send_loop):
            if change is not None:
                change.end()


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
