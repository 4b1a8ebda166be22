"""The receive loop: steps are received and processed until `stop`."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import traceback
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

from ...._core import TROUBLES, Receiver, Step, _last_sender_of, _watch_readers, encode
from ....environment import PEER, QUEUE_MODE, service_number
from ....errors import MalformedMessage, QueueError, QueueRemoved
from ....flight.codes import Kind
from ....log_throttle import Backoff, last_sender_text
from ..health.reporter import Reporter
from ..health.sharing import Sharing
from ..results._results import Stages
from .finish import POLL
from .pairing import DRAFT_WAIT_S
from .steps import Steps
from .warmup import Warmup

COMPACT_MTYPE = 2


class Trouble(NamedTuple):
    """Fault of the queue, which ends with the next step."""

    kind: str  # "removed", "refused" or "queue"
    text: str
    steps: int  # how many there were before it


class Receiving(Steps):
    """Mix-in of `process_sampling_results` and `stop`."""

    warmup: Warmup | None = None
    _receiver: Receiver | None = None
    _stopping = False
    _in_hand_since: float | None = None  # monotonic seconds: when the step that is processed began
    _other_reader = 0  # process that was seen to take a message since the last look
    _trouble: Trouble | None = None  # the last one
    _patient_since: float | None = None  # monotonic seconds; since then something waits for the next step

    @cached_property
    def _troubles_recorded(self) -> dict[str, int]:
        return {}

    ask_for_keys: Callable[[], str] | None = None
    """Question of `activation` that the start could not ask: why do FastDeploy's ops use another queue?"""
    _open_told = (0, 0)
    _open_frames = (0, 0)  # at the last look, and the pieces until then

    @cached_property
    def sharing(self) -> Sharing:
        """Judge of whether another service uses the queue."""
        return Sharing()

    @cached_property
    def removals(self) -> Backoff:
        """Growing wait before a queue is made again."""
        return Backoff()

    def process_sampling_results(self) -> None:
        """Receive and process steps until `stop`."""
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            tracing.trace_set_thread_info("Token Processor")
        self._run_rounds(self._next_round)

    def _run_rounds(self, next_round: Callable[[Stages], None]) -> None:
        """Run rounds until `stop`, together with their periodic checks."""
        stages = self.counters.stages  # passed along: looking it up takes as long as what it does
        stages.begin()
        with Reporter(self) as reporter:
            while not self._stopping:
                try:
                    next_round(stages)
                except (Exception, SystemExit) as error:  # of which a thread ends without a word
                    self._lose(error)
                if not reporter.has_news:
                    reporter.notify()
        self.look()
        stages.ring = None
        self.recorder.end()

    def _next_round(self, stages: Stages) -> None:
        """Receive and process a step; log and count what goes wrong."""
        try:
            step = self._next_step()
            if step is None:
                self.recorder.rest()
                self.between_steps()
            else:
                self._handle(step, stages)
        except QueueRemoved as error:
            if self._receiver is not None and not self._stopping:
                self.recorder.event(Kind.QUEUE_REMOVED, -1, self._receiver.msqid)
            self.recorder.rest()
            self._receiver = None  # the next round makes a new queue
            if not self._stopping:
                self._trouble = Trouble("removed", str(error), self.counters.steps)
                self.complaints.tell("queue removed", f"{error}; a new queue is made")
                time.sleep(self.removals.failed())  # nothing, unless it is removed again and again
        except MalformedMessage as error:
            self.counters.malformed += 1
            assert self._receiver is not None  # which has refused it
            self._trouble = Trouble("refused", str(error), self.counters.steps)
            text, msqid = f"a message was refused: {error}", self._receiver.msqid
            self._record_refused(error, self._receiver)
            self.complaints.tell(
                f"{error.channel} {error.field}", lambda: f"{text}; {last_sender_text(msqid)}"
            )
        except QueueError as error:
            self._trouble = Trouble("queue", str(error), self.counters.steps)
            self.recorder.event(Kind.QUEUE_ERROR, -1, error.errno or 0, text=type(error).__name__)
            self.recorder.rest()
            self.fd.llm_logger.error(f"fd_postproc: {error}")
            time.sleep(1.0)  # permanent, most likely: do not fill the log
        except Exception as error:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Record a step that was lost to the current exception."""
        self.counters.lost_steps += 1
        self.recorder.failure(Kind.LOST, error)
        name = type(error).__name__
        self.complaints.tell(name, f"a step was lost: {name}: {error} {traceback.format_exc()}")

    def _next_step(self) -> Step | None:
        """Wait for a step; None if other work is due first."""
        if self._receiver is None:
            if self.ask_for_keys is not None:
                other = self.ask_for_keys()
                if other:
                    raise QueueError(errno.ENOENT, f"{other}: restart the service")
                self.ask_for_keys = None
            self._receiver = Receiver(self.channel, layout=self.layout, mode=QUEUE_MODE.value)
            self._receiver._follows_sender, self._receiver._ring = True, self.recorder.ring
            self._receiver._service = service_number(os.environ.get(PEER.name, ""))
            if self.recorder.keeps_frames:
                self._receiver._keeper = partial(self.best_effort, "recording a message", self._record_step)
            self.counters.follow(self._receiver)
            self.recorder.event(Kind.QUEUE_MADE, -1, self._receiver.msqid, self._receiver.key or 0)
            if self._stopping:  # `stop` found no receiver whose queue it could remove
                self._receiver.remove()
                return None
        patience = self._patience()
        if patience is not None and patience <= 0:  # nothing but refused messages has come for so long
            self._patient_since = None
            return None
        try:
            step = self._receiver.receive(patience)
        except BaseException:
            self.counters.stages.end_receive()
            raise
        if step is None:  # when it came, a step says itself
            self.counters.stages.end_receive()
        self._patient_since = None
        return step

    def _patience(self) -> float | None:
        """Seconds to wait for a step before other work is due; None if none is.

        Messages that are refused meanwhile take nothing away from it and add nothing.
        """
        patience = POLL if self.transfers else None if self._batch_result_buffer is None else DRAFT_WAIT_S
        if patience is None:
            self._patient_since = None
            return None
        now = time.monotonic()
        if self._patient_since is None:
            self._patient_since = now
        return self._patient_since + patience - now

    def _handle(self, step: Any, stages: Stages | None = None) -> None:
        """Process a step; record its start time, for `healthy`, and FastDeploy's stamps."""
        with self.health_lock:
            self._in_hand_since = time.monotonic()
            self.timestamp_for_alive_before_handle_batch = self.fd.time.time()
            self.timestamp_for_alive_after_handle_batch = None
        try:
            self._process_step(step, stages)
        finally:
            with self.health_lock:
                self._in_hand_since = None
                self.timestamp_for_alive_before_handle_batch = None
                self.timestamp_for_alive_after_handle_batch = self.fd.time.time()
        self.serve_transfers()
        self.warm_up()

    def _record_step(self, step: Step) -> None:
        self.recorder.frame(encode(step, "compact", layout=self.layout), COMPACT_MTYPE)

    def _record_refused(self, error: MalformedMessage, receiver: Receiver) -> None:
        index = -1 if error.index is None else error.index
        self.recorder.event(Kind.REFUSED, -1, error.value, error.bound, index, text=error.field)
        self.recorder.rest()
        if self.recorder.keeps_frames:
            self.best_effort("recording a refused message", self._record_message, receiver)

    def _record_message(self, receiver: Receiver) -> None:
        refused = receiver._refused()
        if refused is not None:
            self.recorder.frame(refused[1], refused[0])

    def look(self) -> None:
        """Record the state of the queue, and the request of each slot."""
        if self.recorder.ring is not None:
            self.best_effort("the flight recorder", self._look)

    def _look(self) -> None:
        receiver, received = self._receiver, self.counters.received()
        for name in TROUBLES:
            more = int(received[name]) - self._troubles_recorded.get(name, 0)
            if more > 0:
                self._troubles_recorded[name] = int(received[name])
                self.recorder.event(Kind[name.upper()], -1, more)
        if receiver is not None:
            self._look_at_frames(receiver)
            sender = 0
            with contextlib.suppress(OSError):  # the queue is gone
                sender = _last_sender_of(receiver.msqid)
            tasks = self.resource_manager.tasks_list
            reader, self._other_reader = self._other_reader, 0
            self.recorder.look(receiver.msqid, sender, tasks, len(self.transfers), reader)

    def watch_readers(self, seconds: float) -> None:
        """Sleep, and check whether another process takes messages out of the queue meanwhile."""
        receiver = self._receiver
        if receiver is None or not self.counters.steps:
            time.sleep(seconds)  # the kernel tells who read in an earlier run
        else:
            thread = getattr(self.worker, "native_id", None) or 0
            reader = _watch_readers(receiver.msqid, thread, seconds, receiver._is_named)
            if reader:
                self._other_reader = reader
                self.sharing.note_reader(time.monotonic(), reader)

    def _look_at_frames(self, receiver: Receiver) -> None:
        """Report frames whose sender has stopped in the middle, once."""
        before, self._open_frames = self._open_frames, receiver._open_frames
        if self._open_frames == before and before[0] > 0 and self._open_told != before:
            self._open_told = before
            self.recorder.event(Kind.OPEN, -1, before[0])

    def warm_up(self) -> None:
        """Count a processed step for the warm-up."""
        if self.warmup is not None and self.warmup.left and self.warmup.step():
            self.fd.llm_logger.info("fd_postproc: warmed up, garbage collection leaves out what lives by now")

    def between_steps(self) -> None:
        """Do the waiting work, when no message has come for a while."""
        if self.transfers:
            self.serve_transfers()
        else:
            self.give_up_draft()

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop and remove its queue; FastDeploy's own class has no such method."""
        self._stopping = True
        receiver, worker = self._receiver, self.worker
        if receiver is not None:
            receiver.remove()
        if worker is not None and worker is not threading.current_thread():
            worker.join(timeout)
