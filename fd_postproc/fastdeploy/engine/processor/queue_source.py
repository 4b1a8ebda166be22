"""Steps from FastDeploy's System V queue."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from ...._core import Attendance, Receiver, Step, encode
from ....errors import MalformedMessage, QueueError, QueueRemoved
from ....flight.codes import Kind
from ....ops.log_throttle import Backoff, last_sender_text
from ....support.environment import PEER, QUEUE_MODE, service_number
from .host import Host
from .journal import Journal
from .source import Trouble

COMPACT_MTYPE = 2
QUEUE_ERROR_S = 1.0  # seconds to wait after an error of the queue: permanent, most likely


class QueueSource:
    """A queue and its receiver, made in the token thread; `Loop` calls its methods.

    Attributes
    ----------
    attendance : Attendance or None
        By which it receives; None until the token thread has made it, and between two queues.
    ask_for_keys : callable or None
        Question of `activation` that the start could not ask: why do FastDeploy's ops use another queue?
    removals : Backoff
        Growing wait before a queue is made again.
    """

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal = host, journal
        self.attendance: Attendance | None = None
        self.ask_for_keys: Callable[[], str] | None = None
        self.removals = Backoff()
        self._is_ended = False

    @property
    def receiver(self) -> Receiver | None:
        """The receiver of the attendance."""
        attendance = self.attendance
        return None if attendance is None else attendance.receiver

    def next(self, patience: float | None) -> Step | None:
        """Wait for a step, for so many seconds; None if there is none."""
        attendance = self.attendance or self._made()
        try:
            step = attendance.receive(patience)
        except BaseException:
            self.journal.counters.stages.end_receive()
            raise
        if step is None:  # when it came, a step says itself
            self.journal.counters.stages.end_receive()
        return step

    def _made(self) -> Attendance:
        """Make the queue and its receiver."""
        if self.ask_for_keys is not None:
            other = self.ask_for_keys()
            if other:
                raise QueueError(errno.ENOENT, f"{other}: restart the service")
            self.ask_for_keys = None
        journal, host = self.journal, self.host
        receiver = Receiver(host.channel, layout=host.layout, mode=QUEUE_MODE.value)
        service = service_number(os.environ.get(PEER.name, ""))
        keeper = partial(journal.best_effort, "recording a message", self._record_step)
        recorder = journal.recorder
        made = Attendance(receiver, service, recorder.ring, keeper if recorder.keeps_frames else None)
        self.attendance = made
        journal.counters.follow(receiver)
        journal.recorder.event(Kind.QUEUE_MADE, -1, receiver.msqid, receiver.key or 0)
        if self._is_ended:  # `wake` found no receiver whose queue it could remove
            receiver.remove()
        return made

    def failed(self, error: Exception) -> tuple[Trouble | None, float | None]:
        """Report why `next` has raised: its trouble, and how long to wait then, in seconds."""
        recorder, complaints, receiver = self.journal.recorder, self.journal.complaints, self.receiver
        if isinstance(error, QueueRemoved):
            if receiver is not None and not self._is_ended:
                recorder.event(Kind.QUEUE_REMOVED, -1, receiver.msqid)
            recorder.rest()
            self.attendance = None  # the next round makes a new queue
            if self._is_ended:
                return None, None
            complaints.tell("queue removed", f"{error}; a new queue is made")
            # No wait, unless it is removed again and again.
            return Trouble("removed", str(error)), self.removals.failed()
        if isinstance(error, MalformedMessage):
            self.journal.counters.malformed += 1
            assert self.attendance is not None  # which has refused it
            text, msqid = f"a message was refused: {error}", self.attendance.receiver.msqid
            self._record_refused(error, self.attendance)
            complaints.tell(f"{error.channel} {error.field}", lambda: f"{text}; {last_sender_text(msqid)}")
            return Trouble("refused", str(error)), None
        if isinstance(error, QueueError):
            recorder.event(Kind.QUEUE_ERROR, -1, error.errno or 0, text=type(error).__name__)
            recorder.rest()
            self.host.fd.llm_logger.error(f"fd_postproc: {error}")
            return Trouble("queue", str(error)), QUEUE_ERROR_S
        raise error

    def wake(self) -> None:
        """Remove the queue, which ends a wait for it."""
        self._is_ended = True
        receiver = self.receiver
        if receiver is not None:
            receiver.remove()

    def _record_step(self, step: Step) -> None:
        self.journal.recorder.frame(encode(step, "compact", layout=self.host.layout), COMPACT_MTYPE)

    def _record_refused(self, error: MalformedMessage, attendance: Attendance) -> None:
        recorder, index = self.journal.recorder, -1 if error.index is None else error.index
        recorder.event(Kind.REFUSED, -1, error.value, error.bound, index, text=error.field)
        recorder.rest()
        if recorder.keeps_frames:
            self.journal.best_effort("recording a refused message", self._record_message, attendance)

    def _record_message(self, attendance: Attendance) -> None:
        refused = attendance.refused()
        if refused is not None:
            self.journal.recorder.frame(refused[1], refused[0])
