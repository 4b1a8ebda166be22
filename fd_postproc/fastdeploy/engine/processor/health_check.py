"""Checks whether steps are processed, and if not, why not."""

from __future__ import annotations

import threading
import time
from functools import cached_property

from ...._core import _last_sender_of
from ....errors import QueueError
from ....support.environment import SILENCE
from ....support.patience import STEP_S
from ....support.process_stat import cpu_seconds, process_stat
from ..health.liveness import BUSY, Health, Liveness, Sight
from ..health.outflow import Outflow, Outlet
from ..health.scheduler_requests import table_of
from .flight_record import Recording, launched
from .host import Host
from .journal import Journal
from .loop import Loop
from .pairing import Pairing
from .queue_source import QueueSource
from .transfers import Transfers


class HealthCheck:
    """Judge of a token processor's health: FastDeploy's ``healthy`` asks it, and the health watchdog.

    Attributes
    ----------
    stuck_after : float
        Seconds after which a step that is in hand is a fault.
    """

    stuck_after = STEP_S

    def __init__(
        self,
        host: Host,
        journal: Journal,
        loop: Loop,
        queue: QueueSource,
        recording: Recording,
        transfers: Transfers,
        pairing: Pairing,
    ) -> None:
        self.host, self.counters, self.loop, self.queue = host, journal.counters, loop, queue
        self.recording, self.transfers, self.pairing = recording, transfers, pairing
        self._outflow = Outflow()
        self._lock = threading.Lock()  # each caller looks in a thread of its own

    @cached_property
    def liveness(self) -> Liveness:
        """The judge of the worker's pace."""
        floor = SILENCE.valid(self.host.fd.llm_logger.error)
        return Liveness(floor, self.host.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT)

    def health(self) -> Health | None:
        """The fault and its reason; None if there is none.

        Something is, if the token thread or one that requests pass has died, if a step has been in hand for
        longer than `stuck_after` or ``FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT`` (the shorter), if the queue cannot
        be used, if the worker is gone, if it is stopped, silent, or sends what cannot be read while requests
        are running (`liveness`), if results are made and none of them leaves (`outflow`), or if another
        service uses the queue (`sharing`).  A worker that sends nothing and is at work is no fault: see
        `verdict`.
        """
        verdict = self.verdict()
        return None if verdict is None or verdict.reason == BUSY else verdict

    def verdict(self) -> Health | None:
        """What `health` finds, or that the worker is busy, which restarts no process."""
        thread, worker, outlet = self._thread_is_wrong(), self._worker_is_wrong(), self._outlet_is_wrong()
        foreign = int(self.counters.received()["foreign"])
        refusal = self.loop.trouble.text if self.loop.trouble is not None else ""
        shared = self.recording.sharing.look(time.monotonic(), foreign, refusal)
        if worker is not None and worker.reason in ("silent", BUSY):  # the other one took its steps
            return thread or shared or outlet or worker
        return thread or worker or outlet or shared

    def _thread_is_wrong(self) -> Health | None:
        worker = getattr(self.host, "worker", None)
        if worker is not None and not worker.is_alive():
            return Health("thread", "the token thread has ended")
        ended = " and ".join(self.pairing.delivery.ended_threads())
        if ended:
            return Health("thread", f"FastDeploy's {ended} has ended: requests wait for ever")
        began, hangs, clock = self._in_hand()
        if began is not None:
            lasted = time.monotonic() - began
            if lasted > min(self.stuck_after, self.host.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT):
                text = f"the token thread has had a step in hand for {lasted:.1f} s{clock}"
                return Health("step", text)
            return None
        if hangs:
            return Health("step", "the engine says that its output hangs")
        trouble = self.loop.trouble
        if trouble is not None and trouble.steps == self.counters.steps and trouble.kind == "queue":
            return Health("queue", f"the queue cannot be used: {trouble.text}")
        return None

    def _in_hand(self) -> tuple[float | None, bool, str]:
        """Start of the current step in monotonic seconds, or None; whether it hangs; a word on the clock.

        Where other code than this processor's has a step in hand, there is only FastDeploy's stamp.
        """
        host = self.host
        with host.health_lock:  # which the token thread takes twice a step: not for long
            began, stamp, clock = self.loop.in_hand_since, host.timestamp_for_alive_before_handle_batch, ""
            if began is None and stamp is not None:
                began = time.monotonic() - (self.host.fd.time.time() - stamp)
                clock = " by the wall clock, which may have been set"
            return began, host.engine_output_token_hang, clock

    def _worker_is_wrong(self) -> Health | None:
        if getattr(self.host, "resource_manager", None) is None:  # nothing runs yet
            return None
        with self._lock:
            return self.liveness.look(self._sight())

    def _outlet_is_wrong(self) -> Health | None:
        if getattr(self.host, "resource_manager", None) is None:  # nothing runs yet
            return None
        delivery, scheduler = self.pairing.delivery, self.host.cached_generated_tokens
        with self._lock:
            return self._outflow.look(
                Outlet(
                    now=time.monotonic(),
                    table=table_of(scheduler, "responses"),
                    puts=(delivery.puts, delivery.unput),
                    sends=delivery.sends_so_far,
                )
            )

    def _sight(self) -> Sight:
        attendance, counted, trouble = self.queue.attendance, self.host.tokens_counter, self.loop.trouble
        names = [task.request_id for task in tuple(self.host.resource_manager.tasks_list) if task is not None]
        sender = 0 if attendance is None else max(attendance.last_sender, 0)
        worker = sender or launched()
        state = _state_of(worker) if worker else ""
        if worker and not state and attendance is not None:
            attendance.sender_due = 0  # the next step's sender is the one
        steps = self.counters.steps
        handled = steps + self.counters.lost_steps
        waits = bool(names and state) and handled == self.liveness.steps
        return Sight(
            now=time.monotonic(),
            steps=handled,
            refused=self.counters.malformed - int(self.counters.received()["foreign"]),
            running={name: counted.get(name, 0) for name in names},
            known=frozenset(tuple(counted)),
            # A worker whose next messages are still unread is not silent either.
            engine_busy=bool(self.transfers.waiting) or self._in_hand()[0] is not None,
            worker=worker,
            state=state,
            cpu=cpu_seconds(worker) if waits else None,
            refused_by_worker=self._refused_by(sender),
            refusal="" if trouble is None else trouble.text,
            removed=trouble is not None and trouble.kind == "removed" and trouble.steps == steps,
        )

    def _refused_by(self, worker: int) -> bool:
        """Whether refused messages may be the worker's; other processes can send, too."""
        receiver, trouble = self.queue.receiver, self.loop.trouble
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
