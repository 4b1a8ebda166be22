"""`healthy` and `health`: what is seen of the token thread, the worker and the queue."""

from __future__ import annotations

import threading
import time
from functools import cached_property

from ..._core import _last_sender_of
from ...environment import SILENCE
from ...errors import QueueError
from ...process_stat import process_stat
from .liveness import STUCK_S, Liveness, Sight, Verdict
from .sockets import Sockets


class Health(Sockets):
    """Whether steps are being processed, and if not, why not."""

    stuck_after = STUCK_S

    @cached_property
    def liveness(self) -> Liveness:
        """What is known of the worker's pace."""
        try:
            floor = SILENCE.value
        except ValueError as error:
            floor = SILENCE.of("")
            self.fd.llm_logger.error(f"fd_postproc: {error}; it is {floor:g}")
        return Liveness(floor, self.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT)

    @cached_property
    def liveness_lock(self) -> threading.Lock:
        """Whoever asks looks."""
        return threading.Lock()

    def healthy(self) -> bool:
        """Whether steps are being processed: whether `health` finds nothing."""
        return self.health() is None

    def health(self) -> Verdict | None:
        """What is wrong, and why: None if nothing is.

        Something is, if the token thread has died, if a step has been in hand for longer than `stuck_after`
        or ``FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT`` (the shorter), if the queue cannot be used, or if requests
        are running and their worker is gone, stopped, silent, or sends what cannot be read (`liveness`).
        """
        return self._thread_is_wrong() or self._worker_is_wrong()

    def _thread_is_wrong(self) -> Verdict | None:
        worker = getattr(self, "worker", None)
        if worker is not None and not worker.is_alive():
            return Verdict("thread", "the token thread has ended")
        began, hangs = self._in_hand()
        if began is not None:
            lasted = self.fd.time.time() - began
            if lasted > min(self.stuck_after, self.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT):
                return Verdict("step", f"the token thread has had a step in hand for {lasted:.1f} s")
            return None
        if hangs:
            return Verdict("step", "the engine says that its output hangs")
        trouble = self._trouble
        if trouble is not None and trouble.steps == self.counters.steps and trouble.kind == "queue":
            return Verdict("queue", f"the queue cannot be used: {trouble.text}")
        return None

    def _in_hand(self) -> tuple[float | None, bool]:
        """Since when a step is in hand, if one is; whether the engine says that its output hangs."""
        with self.health_lock:  # which the token thread takes twice a step: not for long
            began = self.timestamp_for_alive_before_handle_batch
            busy = self.timestamp_for_alive_after_handle_batch is None
            return began if busy else None, self.engine_output_token_hang

    def _worker_is_wrong(self) -> Verdict | None:
        if getattr(self, "resource_manager", None) is None:  # nothing runs yet
            return None
        with self.liveness_lock:
            return self.liveness.look(self._sight())

    def _sight(self) -> Sight:
        receiver, counted, trouble = self._receiver, self.tokens_counter, self._trouble
        names = [task.request_id for task in tuple(self.resource_manager.tasks_list) if task is not None]
        worker = 0 if receiver is None else receiver._last_sender
        worker = max(worker, 0)
        state = _state_of(worker) if names and worker else ""
        if names and worker and not state and receiver is not None:
            receiver._sender_due = 0  # the next step's sender is the one
        steps = self.counters.steps
        return Sight(
            now=time.monotonic(),
            steps=steps + self.counters.lost_steps,
            refused=self.counters.malformed,
            running={name: counted.get(name, 0) for name in names},
            known=frozenset(tuple(counted)),
            # Nor is a worker silent whose next messages nobody has read yet.
            busy=bool(self.transfers) or self._in_hand()[0] is not None,
            worker=worker,
            state=state,
            refused_by_worker=self._refused_by(worker),
            refusal="" if trouble is None else trouble.text,
            removed=trouble is not None and trouble.kind == "removed" and trouble.steps == steps,
        )

    def _refused_by(self, worker: int) -> bool:
        """Whether what was refused may be the worker's: anybody who may write to the queue may send it."""
        receiver, trouble = self._receiver, self._trouble
        if trouble is None or trouble.kind != "refused" or receiver is None or not worker:
            return True
        try:
            return _last_sender_of(receiver.msqid) == worker or not _state_of(worker)
        except QueueError:  # it is being made anew
            return False


def _state_of(process: int) -> str:
    """The letter of ``/proc/PID/stat``, ``S`` if that cannot be read; empty: there is no such process."""
    try:
        state = process_stat(process)[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except (OSError, IndexError):
        return "S"
    return "" if state in ("Z", "X", "x") else state  # a zombie sends nothing either
