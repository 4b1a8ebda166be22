"""What the flight recorder and the health check learn from looks at the queue."""

from __future__ import annotations

import contextlib
import sys
import time

from ...._core import TROUBLES, Attendance, _last_sender_of, _watch_readers
from ....flight.codes import Kind
from ..health.sharing import Sharing
from .host import Host
from .journal import Journal
from .queue_source import QueueSource
from .transfers import Transfers

_PROGRAMS = "__main__", "fastdeploy.entrypoints.openai.api_server"


def launched() -> int:
    """The process by which FastDeploy's server has started its workers, and which ends with them.

    0 if it is not known here: another program runs the engine.
    """
    for name in _PROGRAMS:
        process = getattr(getattr(sys.modules.get(name), "llm_engine", None), "worker_proc", None)
        if isinstance(pid := getattr(process, "pid", None), int):
            return pid
    return 0


class Recording:
    """Looks at the queue and the requests, in the reporter's thread.

    Attributes
    ----------
    sharing : Sharing
        Judge of whether another service uses the queue.
    """

    def __init__(self, host: Host, journal: Journal, queue: QueueSource, transfers: Transfers) -> None:
        self.host, self.journal, self.queue, self.transfers = host, journal, queue, transfers
        self.sharing = Sharing()
        self._recorded: dict[str, int] = {}  # troubles with frames
        self._other_reader = 0  # process that was seen to take a message since the last look
        self._is_over = False
        self._open = self._open_reported = (0, 0)  # frames at the last look, and the fragments until then

    def look(self) -> None:
        """Record the state of the queue, and the request of each slot."""
        if self.journal.recorder.ring is not None and not self._is_over:
            self.journal.best_effort("the flight recorder", self._look)

    def _look(self) -> None:
        recorder, attendance = self.journal.recorder, self.queue.attendance
        received = self.journal.counters.received()
        for name in TROUBLES:
            more = int(received[name]) - self._recorded.get(name, 0)
            if more > 0:
                self._recorded[name] = int(received[name])
                recorder.event(Kind[name.upper()], -1, more)
        if attendance is not None:
            receiver = attendance.receiver
            self._look_at_frames(attendance)
            sender = 0 if self.journal.counters.steps else launched()
            if not sender:
                with contextlib.suppress(OSError):  # the queue is gone
                    sender = _last_sender_of(receiver.msqid)
            tasks = self.host.resource_manager.tasks_list
            reader, self._other_reader = self._other_reader, 0
            recorder.look(receiver.msqid, sender, tasks, len(self.transfers.waiting), reader)

    def end(self) -> None:
        """Record the last state, before FastDeploy ends its workers."""
        self.look()
        self._is_over = True

    def watch_readers(self, seconds: float) -> None:
        """Sleep, and check whether another process takes messages out of the queue meanwhile."""
        attendance = self.queue.attendance
        if attendance is None or not self.journal.counters.steps:
            time.sleep(seconds)  # the kernel names the reader of an earlier run
        else:
            thread = getattr(self.host.worker, "native_id", None) or 0
            reader = _watch_readers(attendance.receiver.msqid, thread, seconds, attendance.is_named)
            if reader:
                self._other_reader = reader
                self.sharing.note_reader(time.monotonic(), reader)

    def _look_at_frames(self, attendance: Attendance) -> None:
        """Report frames whose sender has stopped in the middle, once."""
        before, self._open = self._open, attendance.open_frames
        if self._open == before and before[0] > 0 and self._open_reported != before:
            self._open_reported = before
            self.journal.recorder.event(Kind.OPEN, -1, before[0])
