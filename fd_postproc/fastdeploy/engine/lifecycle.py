"""Start and end of the token processor: stale messages, fast paths, the threads beside the token thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..._version import __version__
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...queues import queue_id_from_env
from ...support.environment import API, PEER, STREAM_INTERVAL, is_on
from . import fast_paths
from .delivery.sending import sends_batches
from .delivery.wake_up import WakeUp
from .health.watch import HealthWatch
from .processor.host import Host
from .processor.journal import Journal
from .processor.loop import Loop
from .processor.pairing import Pairing
from .processor.warmup import Warmup
from .scheduling import Scheduling
from .stale_messages import StaleMessages


class Lifecycle:
    """Starts and ends what runs beside the token thread.

    The constructor calls `prepare`, FastDeploy's ``run`` and its engine's end the other two.

    Attributes
    ----------
    watch_period : float
        Seconds between two checks of the health.
    watch : HealthWatch or None
    wake_up : WakeUp or None
    scheduling : Scheduling
    """

    watch_period = 0.5

    def __init__(self, host: Host, journal: Journal, pairing: Pairing, loop: Loop) -> None:
        self.host, self.journal, self.pairing, self.loop = host, journal, pairing, loop
        self.watch: HealthWatch | None = None
        self.wake_up: WakeUp | None = None
        self.scheduling = Scheduling(journal.counters)
        self._stale: StaleMessages | None = None

    def prepare(self) -> None:
        """Prepare a constructed object for receiving."""
        host, counters = self.host, self.journal.counters
        if not host.receives_objects:  # a socket keeps nothing of an earlier run
            self._stale = StaleMessages(host.channel, host.cfg, host.fd.llm_logger)
            counters.stale += self._stale.at_construction()
        self.loop.warmup = Warmup()
        self.journal.best_effort("the loop that sends", self._take_over_sending)

    def run(self, start: Callable[[], None]) -> None:
        """Start the token thread, by FastDeploy's method, and what runs beside it."""
        best_effort = self.journal.best_effort
        if self._stale is not None:
            self.journal.counters.stale += self._stale.at_run()
        is_prepared = self.loop.warmup is not None
        if self.loop.warmup is not None:
            self.loop.warmup.begin()
            best_effort("the flight recorder", self._begin_recording)
            best_effort("the wait in the scheduler", self._wait_for_results)
            best_effort("the rounds of the scheduler", self._leave_out_rounds)
            best_effort("the fast paths", fast_paths.report_taken, self.host)
        start()
        if is_prepared:
            best_effort("the watch over the health", self._watch_health)

    def _watch_health(self) -> None:
        """Start the health watchdog."""
        self.watch = HealthWatch(self.host, self.watch_period)
        weakref.finalize(self.host, self.watch.end).atexit = False  # it watches the exit, too
        self.watch.begin()

    def _begin_recording(self) -> None:
        journal, channel = self.journal, self.host.channel
        journal.recorder = Recorder.begin(
            "engine", channel, queue_id_from_env(), self.host.fd.llm_logger, node=node_of(self.host.cfg)
        )
        journal.counters.stages.ring = journal.recorder.ring
        peer = PEER.text or "nothing but FastDeploy's messages"
        text = f"fd_postproc {__version__}, {channel}, understands {peer}"
        journal.recorder.event(Kind.ACTIVE, text=text)
        if journal.counters.stale:
            journal.recorder.event(Kind.STALE, -1, journal.counters.stale)

    def _wait_for_results(self) -> None:
        """Let the sender's thread wait in the scheduler until there are results."""
        self.wake_up = WakeUp(self.host.cached_generated_tokens)
        weakref.finalize(self.host, self.wake_up.end)
        text = self.wake_up.begin()
        if text:
            self.host.fd.llm_logger.info(f"fd_postproc: {text}")

    def _leave_out_rounds(self) -> None:
        """Let the schedule thread leave out the rounds that would schedule nothing."""
        host = self.host
        weakref.finalize(host, self.scheduling.end)
        self.scheduling.begin(host.resource_manager, host.engine_worker_queue)

    def _take_over_sending(self) -> None:
        """Install the send loop; the sender's thread may begin before the token thread."""
        delivery, log = self.pairing.delivery, self.host.fd.llm_logger
        weakref.finalize(self.host, delivery.end)
        if STREAM_INTERVAL.complaint:
            log.error(f"fd_postproc: {STREAM_INTERVAL.complaint}; it is off")
        else:
            delivery.interval = STREAM_INTERVAL.value
        self.journal.counters.api_processes = delivery.api_processes
        delivery.begin()
        tokens, seconds = delivery.interval
        if not tokens:
            return
        why_not = self._why_not_joined()
        if why_not:
            log.warning(f"fd_postproc: {STREAM_INTERVAL} has no effect: {why_not}")
        else:
            text = f"results wait for {tokens} tokens or {1000 * seconds:g} ms, and leave as one"
            log.info(f"fd_postproc: {text}, where the API process takes them apart")

    def _why_not_joined(self) -> str:
        """Why no results are joined, as far as this process knows; empty: the API processes decide."""
        if not is_on(API):
            return f"with {API}=0 the API server takes no joined results"
        if getattr(self.host.fd.envs, "FD_USE_HF_TOKENIZER", False):
            return "with FD_USE_HF_TOKENIZER=1 the API server takes no joined results"
        if not sends_batches(self.host.fd.envs):
            return "FastDeploy sends each result by itself (ZMQ_SEND_BATCH_DATA=0, or the internal adapter)"
        delivery = self.pairing.delivery
        if not delivery.is_installed or not delivery.handover_in(self.host.cached_generated_tokens):
            return "FastDeploy's own code sends the results"
        return ""

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop, and restore what `run` has changed in FastDeploy."""
        host = self.host
        if self.watch is not None:  # first: it would report that the token thread has ended
            self.watch.end()
        self.loop.stop(timeout)
        if host.zmq_server is not None and not (host.worker is not None and host.worker.is_alive()):
            host.zmq_server.close()
        if self.wake_up is not None:
            self.wake_up.end()
        self.scheduling.end()
        self.pairing.delivery.end()


def node_of(cfg: Any) -> str:
    """Role and rank of an engine, for a person; "" if it is the only one as far as its configuration says."""
    role = getattr(getattr(cfg, "scheduler_config", None), "splitwise_role", "mixed")
    parallel = getattr(cfg, "parallel_config", None)
    parts = [f"{role} node"] if role in ("prefill", "decode") else []
    if getattr(parallel, "data_parallel_size", 1) > 1:
        parts.append(f"rank {getattr(parallel, 'local_data_parallel_id', 0)}")
    return ", ".join(parts)
