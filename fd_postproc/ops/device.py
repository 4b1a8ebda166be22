"""Saving from tensors of which at least one is on a CUDA device.

A call launches one kernel and returns; a thread sends the message.  What goes wrong after the return is
raised by the next call.  `fd_postproc.core._save` is loaded when the first such tensor comes.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections import deque
from typing import Any

from .._core import environment_variable, host_flag
from ..core.layout import Channel, Layout
from ..core.tensors import OnDevice, device_view
from ..errors import CudaError, NotForKernel, QueueRemoved, UnfitNumber, UnsentSave, queue_error, too_big
from ..queues import key_text
from ..support.checks import seconds
from ..support.environment import CUDA_BUFFERS, QUEUE_MODE
from .arguments import Given, say
from .environment import dialect_of, message_id
from .proof import Comparison, Proof
from .sent import sent
from .table import SAVE_OPS
from .watch import waiting, watch

log = logging.getLogger("fd_postproc")

EXIT_SECONDS = 5.0
"""Seconds that the interpreter waits at exit for unsent messages."""


def stop_flag(not_need_stop: Any) -> tuple[bool, int]:
    """The flag if it is in host memory, otherwise True and its address on the device."""
    try:
        return host_flag(not_need_stop, "not_need_stop"), 0
    except OnDevice:
        view = device_view(not_need_stop, "not_need_stop", "bool")
        if view is None or view[0] == 0:
            raise
        return True, view[0]


class DeviceSaves:
    """The saves from CUDA devices of this process, of which there is one sender thread.

    `extension` is `fd_postproc.core._save`, once it is needed; `lanes` are the queues of device tensors, and
    `proof` is what is known of the kernel.
    """

    def __init__(self) -> None:
        self.extension: Any = None
        self.lanes: list[Any] = []
        self.proof = Proof()
        self._open: dict[tuple[Any, ...], Any] = {}  # the lanes in use
        self._last: tuple[Any, Any] = None, None  # of the last save
        # Saves under way: ticket, job, lane, and the comparison with what keeps the tensors alive.
        self._records: deque[tuple[int, Any, Any, tuple[Comparison | None, Any, Any]]] = deque()
        self._untold: list[UnsentSave] = []  # what the sender thread met
        self._errors: list[Exception] = []  # the same as exceptions
        self._left = False

    # ---- Saving ----------------------------------------------------------------------------------------

    def save(self, given: Given, not_need_stop: Any, tensors: list[Any]) -> Comparison | bool:
        """Save once from tensors of which at least one is on a CUDA device, if the kernel may be used.

        True: its message will be sent.  Otherwise the caller sends, and lets the comparison know what, if
        there is one.  The caller's `tensors` stay alive until the kernel has read them.
        """
        proof, channel = self.proof, SAVE_OPS[given[0]].channel
        if proof.why_off or not (proof.mode or proof.begin(channel)):
            return False
        try:
            return self._save(given, not_need_stop, tensors)
        except (CudaError, NotForKernel) as error:
            if not proof.forgives(error, channel):
                raise
            return False

    def _save(self, given: Given, not_need_stop: Any, tensors: list[Any]) -> Comparison | bool:
        goes_on, address = stop_flag(not_need_stop)
        op, inputs, batch, width, rows, cols, layout, flag, skip_prefill = given
        job = self._loaded().DeviceJob(op, inputs, cols, width, rows, SAVE_OPS[op].roles, address)
        stream = job.stream()
        self._raise_errors()
        ident = message_id()
        lane = self._lane(SAVE_OPS[op].channel, batch, layout)
        comparison = self.proof.comparison(self.extension, lane, job, batch)
        refusal = job.save(
            lane,
            batch,
            stop_flag=ident if goes_on else -ident,
            flag=flag,
            skip_prefill=skip_prefill,
            stream=stream,
            records=self._records,
            keep=(comparison, tensors, not_need_stop),  # alive until the message is sent
            kept=comparison and comparison.kept,
        )
        if refusal is not None:
            raise UnfitNumber(say(op, width, cols, refusal))
        if comparison is not None:
            return comparison
        sent.count += 1
        return True

    def send_all(self) -> None:
        """Wait until everything is sent, so that no message that is sent directly overtakes it.

        The errors since the last call are raised: ValueError, QueueError, CudaError.
        """
        if self.extension.pending():
            self.extension.drain(-1)
        self._raise_errors()

    def flush(self, timeout: float | None) -> bool:
        """See `fd_postproc.ops.flush`."""
        if timeout is not None:
            timeout = seconds(timeout)
        if self.extension is None:
            return True
        deadline = -1 if timeout is None else time.monotonic_ns() + int(min(timeout, 1e9) * 1e9)
        done: bool = self.extension.drain(deadline)
        self._raise_errors()
        return done

    def add_stats(self, total: dict[str, int | float]) -> dict[str, int | float]:
        """Add the counters of all lanes."""
        for lane in [*self.lanes]:
            for name, value in lane.stats.items():
                total[name] = total.get(name, 0) + value
        total.setdefault("lost", 0)
        total["held"], total["held_seconds"] = self.extension.held() if self.extension else (0, 0.0)
        total["compared"], total["differed"] = self.proof.compared, self.proof.differed
        return total

    # ---- Beginning and end -----------------------------------------------------------------------------

    def load(self, devices: list[int]) -> None:
        """Load the kernel on these devices, so that the first save there does not have to."""
        extension = self._loaded()
        for ordinal in devices:
            extension.load(ordinal)

    def _loaded(self) -> Any:
        """The extension, its thread running."""
        if self.extension is None:
            try:
                from ..core import _save as extension
            except ImportError as error:
                raise CudaError(
                    "tensors on a CUDA device need the extension fd_postproc.core._save, which does not "
                    f"load: {error}"
                ) from None
            extension.start(CUDA_BUFFERS.value)
            self.extension = extension
            atexit.register(self._leave)
            if "multiprocessing.util" in sys.modules:  # its processes end without atexit
                sys.modules["multiprocessing.util"].Finalize(None, self._leave, exitpriority=100)
            os.register_at_fork(after_in_child=self._errors.clear)
        return self.extension

    def _leave(self) -> None:
        """Give saves in flight some time at exit, and log the errors."""
        if self._left:
            return
        self._left = True
        left = self.extension.stop(int(EXIT_SECONDS * 1e9))
        self._collect_errors()
        for error in self._errors:
            log.error("%s", error)
        if left:
            log.error(
                "%d saved messages were not sent: after %.0f s the queue was still full, "
                "or the device was not done",
                left,
                EXIT_SECONDS,
            )

    def _lane(self, channel: Channel, batch: int, layout: Layout) -> Any:
        dialect, service = dialect_of(channel, batch, layout)
        which = (channel, environment_variable("INFERENCE_MSG_QUEUE_ID"), dialect, layout, service)
        if which == self._last[0]:
            return self._last[1]  # compared by identity: hashing a layout takes a microsecond
        lane = self._open.get(which)
        if lane is None:
            watch()
            lane = self.extension.Lane(
                channel, dialect=dialect, layout=layout, mode=QUEUE_MODE.value, service=service
            )
            self.lanes.append(lane)
            self._open[which] = lane
        self._last = which, lane
        return lane

    # ---- The outcome of earlier saves ------------------------------------------------------------------

    def _forget_finished(self) -> None:
        """Release the tensors of finished saves; their errors are collected first."""
        done = self.extension.finished()
        self._collect_errors()
        while self._records and self._records[0][0] < done and not self.extension.broken():
            comparison = self._records.popleft()[3][0]
            if comparison is not None:
                comparison.is_finished = True
                comparison.judge()

    def _collect_errors(self) -> None:
        while (unsent := self.extension.take_error()) is not None:
            self._untold.append(unsent)
            if unsent.later:
                log.error("%d more saved messages were not sent", unsent.later)
        for unsent in [*self._untold]:
            for ticket, job, lane, (comparison, *_) in [*self._records]:  # else its thread has not come back
                if ticket == unsent.ticket:
                    self._untold.remove(unsent)
                    error = self._exception(unsent, job, lane)
                    if comparison is not None:
                        comparison.error = error
                    if comparison is None or unsent.kind == "driver":
                        self._errors.append(error)

    def _raise_errors(self) -> None:
        if self.extension is None:
            return
        self._forget_finished()
        if not self._errors:
            return
        errors = [error for error in self._errors if not self._forgiven(error)]
        self._errors.clear()
        for other in errors[1:]:
            log.error("%s", other)
        if errors:
            raise errors[0]

    def _forgiven(self, error: Exception) -> bool:
        return isinstance(error, CudaError) and self.proof.forgives(error, self.lanes[-1].channel)

    def _exception(self, unsent: UnsentSave, job: Any, lane: Any) -> Exception:
        """The sender thread's error, as the exception that a save of host tensors raises."""
        kind, details = unsent.kind, unsent.details
        if kind == "driver":
            return CudaError(f"an earlier save: {details}", details.code)
        where = (
            f"an earlier save, sending to queue msqid:{lane.msqid} ({lane.channel}, key {key_text(lane.key)})"
        )
        if kind == "queue":
            error = queue_error(details, where)
            if isinstance(error, QueueRemoved):  # the next save makes a new queue
                self._last = None, None
                for which in [which for which, known in self._open.items() if known.msqid == lane.msqid]:
                    del self._open[which]
            return error
        if kind == "too big":
            return too_big(where, lane.dialect, *details)
        if kind == "layout":
            return ValueError(
                f"{where}: the layout's full message is shorter than a piece of a frame must be"
            )
        if kind == "refused":
            return UnfitNumber(f"an earlier save was not sent: {say(job.op, job.width, job.cols, details)}")
        claimed, most = details
        return CudaError(f"{where}: the kernel claims {claimed} bytes, {most} is the most")


saves = DeviceSaves()
waiting.append(saves.lanes)
