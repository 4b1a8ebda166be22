"""Save op instead of FastDeploy's: it sends by our code, or falls back to FastDeploy's op."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ..._core import environment_variable, has_counts, has_logprobs, most_requests
from ..._version import __version__
from ...core.layout import GPU, Channel, Dialect
from ...errors import CudaError, QueueError, QueueRemoved, UnfitNumber
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...ops.environment import send_dialect
from ...ops.proof import State
from ...ops.sent import sent
from ...ops.table import SAVE_OPS
from ...queues import queue_id_from_env
from ..build import KeyRule, key_rule, stock_dialect
from ..events.counters import count
from ..events.gauges import export, export_active
from ..events.guard import Guard
from ..events.log import fastdeploy_log
from .drafts import DraftOp, engine_wants_drafts
from .limit_check import check_room

# What our op raises for tensors that it does not know how to read; nothing was sent then.
_REFUSALS = (TypeError, ValueError, AttributeError, RuntimeError)


_FORMS = {
    "streams": "frames over ZeroMQ",
    "compact": "compact frames",
    "packed": "FastDeploy's own messages (packed)",
    "legacy": "FastDeploy's own messages (legacy)",
}


_STOCK = object()
_RETURN_TOKENS = ("plain", "topk")
"""Channels whose save ops return their first argument."""


class LeftToFastDeploy(Exception):
    """Raised with the reason why FastDeploy's own op has to send."""


class SaveOp:
    """Replacement for one of FastDeploy's save ops.

    Whatever is in doubt is left to FastDeploy's op, for good and with one line in the log: both send what
    either receiver understands.  An op of ours that was refused by the kernel, or was given a number that
    FastDeploy's op would write out of bounds, raises.

    Any other exception falls back to FastDeploy's op for the call, if the message was not handed over.  It is
    handed over by the last thing that an op does in C: one that raises there has not sent the whole message,
    and no reader uses the pieces of a frame that is not whole.  What raises after that is logged and counted.
    """

    def __init__(self, name: str, original: Callable[..., Any], get_output_ep: Any = None) -> None:
        self.__name__ = name
        self.__doc__ = original.__doc__
        self.original = original
        self.spec = spec = SAVE_OPS[name]
        # Most builds before preempted_idx have one argument less, and give others another meaning.
        self._n_arguments, self._batch, self._rank = len(spec.parameters), spec.batch, spec.place("rank_id")
        self._get_output_ep = get_output_ep
        self._own: Callable[..., Any] = getattr(ops, name)
        self._state = "new"  # "new", then "own" or "original"
        self._told: set[int] = set()
        self._none_preempted: Any = None  # preempted_idx of calls that have none
        self._checked: set[str | None] = set()
        self._recorder = Recorder()  # records nothing, until the first call
        self._sent = 0
        self._drafts: DraftOp | None = None  # where steps go over ZeroMQ
        self._guard = Guard("save ops")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._state == "original":
            return self._stock(args, kwargs)
        spec, before = self.spec, sent.count
        try:
            if spec.has_shorter_form and len(args) == self._n_arguments - 1 and not kwargs:
                args = self._with_none_preempted(args, spec.place("preempted_idx"), _rows(args[self._batch]))
            result = self._by_ours(args, kwargs)
        except (UnfitNumber, QueueError):
            raise
        except Exception as error:
            if self._drafts is not None or self._goes_over_socket():
                raise  # the engine does not read the queue into which FastDeploy's op would send
            if sent.count != before:  # the step is on its way: FastDeploy's op would send it a second time
                self._guard.failed(error)
                return args[0] if spec.channel in _RETURN_TOKENS else None
            self._fall_back(error, args)
            result = _STOCK
        return self._stock(args, kwargs) if result is _STOCK else result

    def _by_ours(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send by our op; `_STOCK` if FastDeploy's is to be called."""
        spec = self.spec
        if kwargs or len(args) != self._n_arguments:
            if self._goes_over_socket():
                count = len(args) + len(kwargs)
                raise TypeError(f"{self.__name__} has {count} arguments, {self._n_arguments} are known")
            self._tell_other_form(args, kwargs)
            return _STOCK
        if self._state == "new" and self._goes_over_socket():
            self._drafts = DraftOp(self.__name__, spec)
        if args[self._rank] > 0 and not (spec.every_rank and args[spec.place("save_each_rank")]):
            # Sends nothing, or in some builds of FastDeploy does.
            return _STOCK if self._drafts is None else None
        if self._state == "new":
            if self._drafts is None:
                dialect: str = self._dialect(_rows(args[self._batch]))
                self._check_room(args, dialect)
            else:
                dialect = "streams"
            self._begin_recording(dialect)
        result = self._send(args) if self._recorder.ring is None else self._send_and_record(args)
        if self._guard.in_a_row:
            self._guard.worked()
        if self._state == "new":
            self._state = "own"
            export_active("worker", True)
            fastdeploy_log().info(
                "fd_postproc: worker side active: %s sends %s on channel %s",
                self.__name__, _FORMS[dialect], spec.channel,
            )  # fmt: skip
        return result

    def _fall_back(self, error: Exception, args: tuple[Any, ...]) -> None:
        """Fall back to FastDeploy's op after an exception of ours before anything was sent.

        For good where ours cannot read the tensors, or has failed too often; for this call otherwise.
        """
        try:
            if not isinstance(error, (LeftToFastDeploy, *_REFUSALS)):
                self._guard.failed(error)
                if not self._guard.is_on:
                    self._leave(error, args)
                return
            if self._state == "new":
                self._begin_recording(None)
            self._leave(error, args)
        except Exception as other:
            self._guard.failed(other)

    def _goes_over_socket(self) -> bool:
        return has_counts(self.spec.channel) and engine_wants_drafts()

    def _with_none_preempted(self, args: tuple[Any, ...], at: int, batch: int) -> tuple[Any, ...]:
        if self._none_preempted is None or len(self._none_preempted) < batch:
            self._none_preempted = np.zeros(max(batch, GPU.max_batch), np.int32)
        return (*args[:at], self._none_preempted, *args[at:])

    def _send(self, args: tuple[Any, ...]) -> Any:
        if self._drafts is not None:
            return self._drafts(args)
        try:
            return self._own(*args)
        except QueueRemoved:  # nothing was sent; our op makes a new queue
            return self._own(*args)

    def _begin_recording(self, dialect: str | None) -> None:
        """Start the flight recorder at the first call: a process that never sends needs none."""
        if self._recorder.ring is None:
            self._recorder = recorder_of_process(self.spec.channel)
            form = "FastDeploy's own op" if dialect is None else _FORMS[dialect]
            text = f"fd_postproc {__version__}, {self.spec.channel}, {self.__name__}: {form}"
            self._recorder.event(Kind.ACTIVE, text=text)

    def _send_and_record(self, args: tuple[Any, ...]) -> Any:
        ring, number = self._recorder.ring, self._sent
        assert ring is not None
        self._sent = number + 1
        began = time.monotonic_ns()
        ring.busy(True)
        try:
            result = self._send(args)
        except BaseException as error:
            if isinstance(error, QueueError):  # its text says which limit, and nothing of a user
                self._recorder.event(Kind.SEND_FAILED, -1, number, text=str(error))
                ring.busy(False)
            else:
                self._recorder.failure(Kind.SEND_FAILED, error, -1, number)
            raise
        ring.event(Kind.SENT, -1, number, time.monotonic_ns() - began, _rows(args[self._batch]))
        ring.busy(False)
        return result

    def _stock(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Call FastDeploy's own op, after all pending frames of our ops."""
        try:
            ops.flush()
        except (ValueError, QueueError, CudaError):  # of an earlier step
            raise
        except Exception as error:
            self._guard.failed(error)
        return self.original(*args, **(kwargs or {}))

    def _dialect(self, batch: int) -> Dialect:
        """The dialect of the messages."""
        channel = self.spec.channel
        logprobs = has_logprobs(channel)
        dialect = send_dialect(logprobs, batch > most_requests(channel))
        # Also if the engine side is ours: a later step may have to be left to FastDeploy's op.
        try:
            rule = key_rule(self._get_output_ep)
        except QueueError as error:  # FastDeploy's op could make no queue either, and would not say so
            fastdeploy_log().warning("fd_postproc: %s: %s", self.__name__, error)
            rule = KeyRule.OURS
        if rule is KeyRule.OTHER:
            raise LeftToFastDeploy("this build of FastDeploy makes the keys of queues by another rule")
        if rule is KeyRule.UNKNOWN:
            raise LeftToFastDeploy(
                "nothing tells by which rule this build of FastDeploy makes the keys of queues"
            )
        if logprobs and dialect == "packed" and environment_variable("FD_POSTPROC_DIALECT") in (None, "auto"):
            reads = stock_dialect(channel)
            if reads != "packed":
                known = f"reads the {reads} dialect" if reads else "reads an unknown dialect"
                raise LeftToFastDeploy(
                    f"the engine side is not fd_postproc's, and this build of FastDeploy {known}"
                )
        return dialect

    def _leave(self, why: Exception, args: tuple[Any, ...]) -> None:
        """Fall back to FastDeploy's op from now on."""
        self._state = "original"
        self._recorder.event(Kind.FELL_BACK, text=f"{self.__name__}: {type(why).__name__}: {why}")
        export_active("worker", False)
        fastdeploy_log().warning("fd_postproc: %s is left to FastDeploy's own op: %s", self.__name__, why)
        self._check_room(args, None)

    def _check_room(self, args: tuple[Any, ...], dialect: Any) -> None:
        """Check the queue's room once for each dialect; None falls back."""
        if dialect in self._checked:
            return
        self._checked.add(dialect)
        log = fastdeploy_log()
        try:
            check_room(self.spec.channel, _rows(args[self._batch]), dialect, log)
        except (IndexError, OSError, ValueError) as error:
            log.debug("fd_postproc: the limits were not looked at: %s", error)

    def _tell_other_form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        count = len(args) + len(kwargs)
        if count in self._told:
            return
        self._told.add(count)
        fastdeploy_log().warning(
            "fd_postproc: calls of %s with %d arguments are left to FastDeploy's own op: ours takes %d",
            self.__name__, count, self._n_arguments,
        )  # fmt: skip
        self._check_room(args, None)


@functools.lru_cache(maxsize=1)
def _recorder_of(pid: int, channel: Channel) -> Recorder:
    try:
        queue_id = queue_id_from_env()
    except ValueError as error:
        fastdeploy_log().warning("fd_postproc: no flight recorder: %s", error)
        return Recorder()
    return Recorder.begin("worker", channel, queue_id, fastdeploy_log())


def recorder_of_process(channel: Channel) -> Recorder:
    """The recorder of this process, shared by all of its save ops."""
    return _recorder_of(os.getpid(), channel)


def report_kernel(state: State) -> None:
    """Report whether the save kernel is used; the flight recorder's file keeps what turned it off."""
    export("fast_path", "path", "cuda", state.is_used)
    if state.why_off:
        count("fallbacks", "cuda")
        recorder, text = recorder_of_process(state.channel), f"the save kernel is off: {state.why_off}"
        recorder.event(Kind.FELL_BACK, text=text)
        recorder.note(text)


def _rows(tensor: Any) -> int:
    shape: Any = getattr(tensor, "shape", ())
    return int(shape[0]) if len(shape) else 0
