"""Start, health and end of the token processor: stale messages, fast paths, is it alive?"""

from __future__ import annotations

import threading
import time
import weakref
from functools import cached_property
from typing import Any

from ..._core import _last_sender_of
from ..._version import __version__
from ...environment import API, PEER, SILENCE, STREAM_INTERVAL, is_on
from ...errors import QueueError
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...patience import STEP_S
from ...process_stat import cpu_seconds, process_stat
from ...queues import queue_id_from_env
from . import fast_paths
from .delivery.sending import sends_batches
from .delivery.wake_up import WakeUp
from .health.liveness import BUSY, Health, Liveness, Sight
from .health.outflow import Outflow, Outlet
from .health.watch import HealthWatch
from .processor.warmup import Warmup
from .stale_messages import StaleMessages
from .zmq.zmq_loop import Sockets


class Lifecycle(Sockets):
    """Mix-in of `run`, `stop` and `health`; an object made by ``__new__`` has its defaults."""

    stale: StaleMessages | None = None
    wake_up: WakeUp | None = None
    watch: HealthWatch | None = None
    watch_period = 0.5
    """Seconds between two checks of the health."""

    def _get_ready(self) -> None:
        """Prepare a constructed object for receiving."""
        if not self.receives_objects:  # a socket keeps nothing of an earlier run
            self.stale = StaleMessages(self.channel, self.cfg, self.fd.llm_logger)
            self.counters.stale += self.stale.at_construction()
        self.warmup = Warmup()
        self._let_finalizer_go()
        self.best_effort("the loop that sends", self._take_over_sending)

    def _let_finalizer_go(self) -> None:
        """Clean up with this object, which FastDeploy's finalizer would keep alive."""
        finalizer, executor = getattr(self, "_finalizer", None), getattr(self, "executor", None)
        if isinstance(finalizer, weakref.finalize) and executor is not None:
            finalizer.detach()
            masks = getattr(self, "sampling_mask_zmq_server", None)
            _keep_for_good(getattr(self, "split_connector", None))
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
            self.best_effort("the fast paths", fast_paths.tell, self)
        super().run()
        if self.warmup is not None:
            self.best_effort("the watch over the health", self._watch_health)

    def _watch_health(self) -> None:
        """Start the health watchdog."""
        self.watch = HealthWatch(self, self.watch_period)
        weakref.finalize(self, self.watch.end)
        self.watch.begin()

    def _begin_recording(self) -> None:
        self.recorder = Recorder.begin(
            "engine", self.channel, queue_id_from_env(), self.fd.llm_logger, node=node_of(self.cfg)
        )
        self.counters.stages.ring = self.recorder.ring
        peer = PEER.text or "nothing but FastDeploy's messages"
        self.recorder.event(
            Kind.ACTIVE, text=f"fd_postproc {__version__}, {self.channel}, understands {peer}"
        )
        if self.counters.stale:
            self.recorder.event(Kind.STALE, -1, self.counters.stale)

    def _wait_for_results(self) -> None:
        """Let the sender's thread wait in the scheduler until there are results."""
        self.wake_up = WakeUp(self.cached_generated_tokens)
        weakref.finalize(self, self.wake_up.end)
        text = self.wake_up.begin()
        if text:
            self.fd.llm_logger.info(f"fd_postproc: {text}")

    def _take_over_sending(self) -> None:
        """Install the send loop; the sender's thread may begin before the token thread."""
        weakref.finalize(self, self.delivery.end)
        if STREAM_INTERVAL.complaint:
            self.fd.llm_logger.error(f"fd_postproc: {STREAM_INTERVAL.complaint}; it is off")
        else:
            self.delivery.interval = STREAM_INTERVAL.value
        self.counters.api_processes = self.delivery.api_processes
        self.delivery.begin()
        tokens, seconds = self.delivery.interval
        if not tokens:
            return
        why_not = self._why_not_joined()
        if why_not:
            self.fd.llm_logger.warning(f"fd_postproc: {STREAM_INTERVAL} has no effect: {why_not}")
        else:
            text = f"results wait for {tokens} tokens or {1000 * seconds:g} ms, and leave as one"
            self.fd.llm_logger.info(f"fd_postproc: {text}, where the API process takes them apart")

    def _why_not_joined(self) -> str:
        """Why no results are joined, as far as this process knows; empty: the API processes decide."""
        if not is_on(API):
            return f"with {API}=0 the API server takes no joined results"
        if getattr(self.fd.envs, "FD_USE_HF_TOKENIZER", False):
            return "with FD_USE_HF_TOKENIZER=1 the API server takes no joined results"
        if not sends_batches(self.fd.envs):
            return "FastDeploy sends each result by itself (ZMQ_SEND_BATCH_DATA=0, or the internal adapter)"
        if not self.delivery.is_installed or not self.delivery.handover_in(self.cached_generated_tokens):
            return "FastDeploy's own code sends the results"
        return ""

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop, and restore what `run` has changed in FastDeploy."""
        if self.watch is not None:  # first: it would tell that the token thread has ended
            self.watch.end()
        super().stop(timeout)
        if self.wake_up is not None:
            self.wake_up.end()
        self.delivery.end()

    # ---- whether steps are processed, and if not, why not

    stuck_after = STEP_S

    @cached_property
    def liveness(self) -> Liveness:
        """The judge of the worker's pace."""
        floor = SILENCE.valid(self.fd.llm_logger.error)
        return Liveness(floor, self.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT)

    @cached_property
    def liveness_lock(self) -> threading.Lock:
        """Lock of the liveness check, which runs in the thread that asks."""
        return threading.Lock()

    def healthy(self) -> bool:
        """Whether steps are processed: `health` finds no fault."""
        return self.health() is None

    def health(self) -> Health | None:
        """The fault and its reason; None if there is none.

        Something is, if the token thread or one that requests pass has died, if a step has been in hand for
        longer than `stuck_after` or ``FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT`` (the shorter), if the queue cannot
        be used, if requests are running and their worker is gone, stopped, silent, or sends what cannot be
        read (`liveness`), if results are made and none of them leaves (`outflow`), or if another service uses
        the queue (`sharing`).  A worker that sends nothing and is at work is no fault: see `verdict`.
        """
        verdict = self.verdict()
        return None if verdict is None or verdict.reason == BUSY else verdict

    def verdict(self) -> Health | None:
        """What `health` finds, or that the worker is busy, which restarts nobody."""
        thread, worker, outlet = self._thread_is_wrong(), self._worker_is_wrong(), self._outlet_is_wrong()
        foreign = int(self.counters.received()["foreign"])
        refusal = self._trouble.text if self._trouble is not None else ""
        shared = self.sharing.look(time.monotonic(), foreign, refusal)
        if worker is not None and worker.reason in ("silent", BUSY):  # the other one took its steps
            return thread or shared or outlet or worker
        return thread or worker or outlet or shared

    def _thread_is_wrong(self) -> Health | None:
        worker = getattr(self, "worker", None)
        if worker is not None and not worker.is_alive():
            return Health("thread", "the token thread has ended")
        ended = self.delivery.ended_thread()
        if ended:
            return Health("thread", f"FastDeploy's {ended} has ended: requests wait for ever")
        began, hangs, clock = self._in_hand()
        if began is not None:
            lasted = time.monotonic() - began
            if lasted > min(self.stuck_after, self.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT):
                text = f"the token thread has had a step in hand for {lasted:.1f} s{clock}"
                return Health("step", text)
            return None
        if hangs:
            return Health("step", "the engine says that its output hangs")
        trouble = self._trouble
        if trouble is not None and trouble.steps == self.counters.steps and trouble.kind == "queue":
            return Health("queue", f"the queue cannot be used: {trouble.text}")
        return None

    def _in_hand(self) -> tuple[float | None, bool, str]:
        """Start of the current step in monotonic seconds, or None; whether it hangs; a word on the clock.

        Where other code than this processor's has a step in hand, there is only FastDeploy's stamp.
        """
        with self.health_lock:  # which the token thread takes twice a step: not for long
            began, stamp, clock = self._in_hand_since, self.timestamp_for_alive_before_handle_batch, ""
            if began is None and stamp is not None:
                began = time.monotonic() - (self.fd.time.time() - stamp)
                clock = " by the wall clock, which may have been set"
            return began, self.engine_output_token_hang, clock

    def _worker_is_wrong(self) -> Health | None:
        if getattr(self, "resource_manager", None) is None:  # nothing runs yet
            return None
        with self.liveness_lock:
            return self.liveness.look(self._sight())

    @cached_property
    def outflow(self) -> Outflow:
        """The judge of the way out."""
        return Outflow()

    def _outlet_is_wrong(self) -> Health | None:
        if getattr(self, "resource_manager", None) is None:  # nothing runs yet
            return None
        delivery, scheduler = self.delivery, self.cached_generated_tokens
        # The data-parallel scheduler keeps a local one.
        tables = (
            getattr(one, "responses", None) for one in (scheduler, getattr(scheduler, "_scheduler", None))
        )
        with self.liveness_lock:
            return self.outflow.look(
                Outlet(
                    now=time.monotonic(),
                    table=next((one for one in tables if isinstance(one, dict)), None),
                    puts=(delivery.puts, delivery.unput),
                    sends=delivery.sends_so_far,
                )
            )

    def _sight(self) -> Sight:
        receiver, counted, trouble = self._receiver, self.tokens_counter, self._trouble
        names = [task.request_id for task in tuple(self.resource_manager.tasks_list) if task is not None]
        worker = 0 if receiver is None else receiver._last_sender
        worker = max(worker, 0)
        state = _state_of(worker) if names and worker else ""
        if names and worker and not state and receiver is not None:
            receiver._sender_due = 0  # the next step's sender is the one
        steps = self.counters.steps
        handled = steps + self.counters.lost_steps
        waits = bool(state) and handled == self.liveness.steps
        return Sight(
            now=time.monotonic(),
            steps=handled,
            refused=self.counters.malformed - int(self.counters.received()["foreign"]),
            running={name: counted.get(name, 0) for name in names},
            known=frozenset(tuple(counted)),
            # A worker whose next messages are still unread is not silent either.
            engine_busy=bool(self.transfers) or self._in_hand()[0] is not None,
            worker=worker,
            state=state,
            cpu=cpu_seconds(worker) if waits else None,
            refused_by_worker=self._refused_by(worker),
            refusal="" if trouble is None else trouble.text,
            removed=trouble is not None and trouble.kind == "removed" and trouble.steps == steps,
        )

    def _refused_by(self, worker: int) -> bool:
        """Whether refused messages may be the worker's; other processes can send, too."""
        receiver, trouble = self._receiver, self._trouble
        if trouble is None or trouble.kind != "refused" or receiver is None or not worker:
            return True
        try:
            return _last_sender_of(receiver.msqid) == worker or not _state_of(worker)
        except QueueError:  # it is being made anew
            return False


def _state_of(process: int) -> str:
    """State letter of ``/proc/PID/stat``; ``S`` if unreadable, empty if not there."""
    try:
        state = process_stat(process)[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except (OSError, IndexError):
        return "S"
    return "" if state in ("Z", "X", "x") else state  # a zombie sends nothing either


_kept: dict[int, Any] = {}


def _keep_for_good(connector: Any) -> None:
    """Keep a connector to other instances alive, as FastDeploy's finalizer does.

    It has a ZeroMQ context with open sockets and no end of its own: collected with them as garbage, the
    context may go first, and waits for them for ever.
    """
    if connector is not None:
        _kept[id(connector)] = connector


def node_of(cfg: Any) -> str:
    """Role and rank of an engine, for a person; "" if it is the only one as far as its configuration says."""
    role = getattr(getattr(cfg, "scheduler_config", None), "splitwise_role", "mixed")
    parallel = getattr(cfg, "parallel_config", None)
    parts = [f"{role} node"] if role in ("prefill", "decode") else []
    if getattr(parallel, "data_parallel_size", 1) > 1:
        parts.append(f"rank {getattr(parallel, 'local_data_parallel_id', 0)}")
    return ", ".join(parts)


def _clean_up(executor: Any, masks: Any) -> None:
    """Clean up after a token processor; `masks` is FastDeploy's server of sampling masks, if any.

    Its socket is closed first: the end of a ZeroMQ context waits for every open socket, and in a garbage
    cycle the order of the two is undefined.
    """
    try:
        if masks is not None:
            masks.close()
    finally:
        executor.shutdown(wait=False)
