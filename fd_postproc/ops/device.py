"""The save ops' other way: tensors on a CUDA device, at least one of them.

A call launches one kernel and returns; a thread sends the message.  What goes wrong after the return is
raised by the next call.  `fd_postproc._save` is loaded when the first such tensor comes.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections import deque
from typing import Any

from .._core import DeviceInput, HostInput, environment_variable, host_flag, tensor_input
from ..checks import seconds
from ..errors import CudaError, QueueRemoved, UnfitNumber, queue_error, too_big
from ..layout import Layout
from ..queues import key_text
from ..tensors import OnDevice, device_view
from .arguments import ARGUMENTS, CHANNELS, Sizes, say
from .environment import cuda_buffers, cuda_way, dialect_of, message_id, queue_mode
from .watch import waiting, watch

log = logging.getLogger("fd_postproc")

EXIT_SECONDS = 5.0
"""How long the interpreter's end waits for messages that are not yet sent."""

_save: Any = None  # the extension, once it is needed
lanes: list[Any] = []
"""Queues that device tensors were saved to; empty: there were none."""
_open: dict[tuple[Any, ...], Any] = {}  # those in use
_records: deque[tuple[int, Any, Any, Any]] = deque()  # saves under way; keeps their tensors alive
_untold: list[tuple[int, str, Any]] = []  # what the sender thread met: ticket, kind, details
_errors: list[Exception] = []  # the same as exceptions
again: Any = None
"""`fd_postproc._save.Again`, once the extension is needed: saves that are like the last one."""
_left = False

waiting.append(lanes)


def save(
    op: str,
    given: dict[str, Any],
    inputs: dict[str, HostInput | DeviceInput],
    sizes: Sizes,
    not_need_stop: Any,
    layout: Layout,
    flag: int,
    skip_prefill: bool,
) -> None:
    """Save once from tensors of which at least one is on a CUDA device."""
    goes_on, address = stop_flag(not_need_stop)
    job = make_job(op, inputs, sizes, address)
    lane = launch(
        job,
        (given, not_need_stop),
        sizes[0],
        goes_on,
        layout,
        flag=flag,
        skip_prefill=skip_prefill,
        stream=job.stream(),
    )
    if again is not None:
        again.keep(job, lane, given, not_need_stop, layout, flag, skip_prefill, sizes[0], message_id())


def stop_flag(not_need_stop: Any) -> tuple[bool, int]:
    """The flag if it is in host memory, else True and its address on the device."""
    try:
        return host_flag(not_need_stop, "not_need_stop"), 0
    except OnDevice:
        view = device_view(not_need_stop, "not_need_stop", "bool")
        if view is None or view[0] == 0:
            raise
        return True, view[0]


def make_job(op: str, inputs: dict[str, HostInput | DeviceInput], sizes: Sizes, flag_address: int) -> Any:
    """A `fd_postproc._save.DeviceJob`."""
    _, width, rows, cols = sizes
    return _extension().DeviceJob(op, inputs, cols, width, rows, ARGUMENTS[op], flag_address)


def launch(
    job: Any,
    keep: Any,
    batch: int,
    goes_on: bool,
    layout: Layout,
    *,
    flag: int,
    skip_prefill: bool,
    stream: int,
) -> Any:
    """Launch the kernel of a job; `keep` stays alive until the message is sent.  Returns the lane."""
    _raise_errors()
    ident = message_id()
    lane = _lane(CHANNELS[job.op], batch, layout)
    fault = job.save(
        lane,
        batch,
        stop_flag=ident if goes_on else -ident,
        flag=flag,
        skip_prefill=skip_prefill,
        stream=stream,
        records=_records,
        keep=keep,
    )
    if fault is not None:
        raise UnfitNumber(say(job.op, job.width, job.cols, *fault))
    _forget_finished()
    return lane


def ready(*tensors: Any) -> None:
    """See `fd_postproc.ops.ready`."""
    inputs = []
    for tensor in tensors:
        dtype = "float32" if "float" in str(getattr(tensor, "dtype", "")) else "int64"
        value = tensor_input(tensor, "a tensor", dtype)
        if isinstance(value, DeviceInput) and value.device >= 0 and value.size:
            inputs.append(value)
    if inputs and any(value.device != inputs[0].device for value in inputs):
        raise ValueError("the tensors are on several CUDA devices; mark those of each by a call of its own")
    if inputs:
        _extension().mark(inputs, inputs[0].stream())


def settle() -> None:
    """Wait until everything is sent, so that a message that is sent at once does not overtake.

    Raises
    ------
    ValueError, QueueError, CudaError
        What went wrong since the last call.
    """
    if _save.pending():
        _save.drain(-1)
    _raise_errors()


def flush(timeout: float | None) -> bool:
    """See `fd_postproc.ops.flush`."""
    if timeout is not None:
        timeout = seconds(timeout)
    if _save is None:
        return True
    deadline = -1 if timeout is None else time.monotonic_ns() + int(min(timeout, 1e9) * 1e9)
    done: bool = _save.drain(deadline)
    _raise_errors()
    return done


def add_stats(total: dict[str, int | float]) -> dict[str, int | float]:
    """Add the counters of all lanes."""
    for lane in [*lanes]:
        for name, value in lane.stats.items():
            total[name] = total.get(name, 0) + value
    total.setdefault("lost", 0)
    total["held"], total["held_seconds"] = _save.held() if _save is not None else (0, 0.0)
    return total


# ---- Beginning and end -------------------------------------------------------------------------------


def load(devices: list[int]) -> None:
    """Load the kernel on these devices, so that the first save there need not."""
    extension = _extension()
    for ordinal in devices:
        extension.load(ordinal)


def _extension() -> Any:
    """`fd_postproc._save`, its thread running."""
    global _save, again
    if _save is None:
        try:
            from .. import _save as extension
        except ImportError as error:
            raise CudaError(
                f"tensors on a CUDA device need the extension fd_postproc._save, which does not load: {error}"
            ) from None
        extension.start(cuda_buffers(), cuda_way())
        _save = extension
        again = extension.Again(_records, (_untold, _errors))
        atexit.register(_leave)
        if "multiprocessing.util" in sys.modules:  # its processes end without atexit
            sys.modules["multiprocessing.util"].Finalize(None, _leave, exitpriority=100)
        os.register_at_fork(after_in_child=_errors.clear)
    return _save


def _leave() -> None:
    """At the interpreter's end: what is under way gets some time, and what went wrong is told."""
    global _left
    if _left:
        return
    _left = True
    left = _save.stop(int(EXIT_SECONDS * 1e9))
    _collect_errors()
    for error in _errors:
        log.error("%s", error)
    if left:
        log.error(
            "%d saved messages were not sent: after %.0f s the queue was still full, or the device not done",
            left,
            EXIT_SECONDS,
        )


def _lane(channel: str, batch: int, layout: Layout) -> Any:
    dialect = dialect_of(channel, batch, layout)
    which = (channel, environment_variable("INFERENCE_MSG_QUEUE_ID"), dialect, layout)
    lane = _open.get(which)
    if lane is None:
        watch()
        lane = _save.Lane(channel, dialect=dialect, layout=layout, mode=queue_mode())
        lanes.append(lane)
        _open[which] = lane
    return lane


# ---- What became of earlier saves ----------------------------------------------------------------------


def _forget_finished() -> None:
    """Let go of the tensors of saves that are done; their errors are asked for first."""
    done = _save.finished()
    _collect_errors()
    while _records and _records[0][0] < done and not _save.broken():
        _records.popleft()


def _collect_errors() -> None:
    while (found := _save.take_error()) is not None:
        _untold.append(found[:3])
        if found[3]:
            log.error("%d more saved messages were not sent", found[3])
    for error in [*_untold]:
        ticket, kind, details = error
        for record in [*_records]:  # not yet there if the thread that saved it has not come back
            if record[0] == ticket:
                _untold.remove(error)
                _errors.append(_exception(kind, details, *record[1:3]))


def _raise_errors() -> None:
    if _save is None:
        return
    _forget_finished()
    if not _errors:
        return
    first, others = _errors[0], _errors[1:]
    _errors.clear()
    for other in others:
        log.error("%s", other)
    raise first


def _exception(kind: str, details: Any, job: Any, lane: Any) -> Exception:
    """What the sender thread met, as the exception that a host tensor's call would have raised."""
    if kind == "driver":
        return CudaError(f"an earlier save: {details}", details.code)
    where = f"an earlier save, sending to queue {lane.msqid} ({lane.channel}, key {key_text(lane.key)})"
    if kind == "queue":
        error = queue_error(details, where)
        if isinstance(error, QueueRemoved):  # the next save makes a new queue
            again.forget()
            for which in [which for which, known in _open.items() if known.msqid == lane.msqid]:
                del _open[which]
        return error
    if kind == "too big":
        return too_big(where, lane.dialect, *details)
    if kind == "layout":
        return ValueError(f"{where}: the layout's full message is shorter than a piece of a frame must be")
    if kind == "refused":
        return UnfitNumber(f"an earlier save was not sent: {say(job.op, job.width, job.cols, *details)}")
    return AssertionError(f"{where}: the kernel claims {details[0]} bytes, {details[1]} is the most")
