"""Steps from FastDeploy's ZeroMQ transport, which come pickled or as frames of our worker side.

FastDeploy's own socket is used, which its constructor has bound; nothing of ZeroMQ is imported here.
"""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

from ...._core import Sequences, Step, _is_frame, _open_streamed
from ....errors import MalformedMessage
from ....flight.codes import Kind
from ....ops.environment import peer_understands
from ....ops.log_throttle import Backoff
from ....queues import existing, locate
from ....support.environment import DRAFTS, PEER, WORKER
from .frame_step import Framed
from .host import Host
from .journal import Journal
from .source import Trouble

MASKS_AND_DRAFTS = (
    "FD_USE_GET_SAVE_OUTPUT_V1 does not support sampling masks with speculative decoding: FastDeploy's "
    "save_output_speculate asserts that there is a queue of sampling masks, which its workers do not make "
    "then; turn one of the three off"
)
UNANNOUNCED = (
    "FD_USE_GET_SAVE_OUTPUT_V1 does not support speculative decoding in FastDeploy, and the plug-in has not "
    f"announced to the workers that it takes accepted tokens there ({PEER.name} lacks {DRAFTS}): "
    f"{WORKER} is off, or the engine's log says why; or turn one of the two off"
)
MOST_WAITING = 2
"""Limit of messages in the socket, where one may be a part of a step of many megabytes."""
UNHEARD_S = 2.0
"""Seconds without a first step after which the queue is looked at, to which other workers send."""


class Arrivals:
    """Totals of the socket's messages, as a `Receiver` has those of its queue."""

    def __init__(self, sequences: Sequences, address: str, channel: str) -> None:
        self._sequences, self.waited = sequences, 0.0
        self.place = f"{address} ({channel})"

    @property
    def stats(self) -> dict[str, int | float]:
        """The totals that a queue has, too."""
        return {
            "wait_seconds": self.waited,
            **dict.fromkeys(("corrupt", "foreign", "incomplete"), 0),
            **self._sequences.stats,
        }

    @property
    def senders(self) -> dict[int, dict[str, int]]:
        """The senders, as of `Receiver.senders`."""
        return self._sequences.senders


class Refused(Exception):
    """Raised for a message that is no step; its cause says why."""


class Unread(Exception):
    """Raised if steps lie where no thread reads them; the text says why."""


class SocketSource:
    """FastDeploy's socket of steps; `Loop` calls its methods.

    Attributes
    ----------
    sequences : Sequences
        The sequence numbers of received frames.
    """

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd
        self.sequences = Sequences()
        self._arrivals: Arrivals | None = None
        self._parts_of: int | None = None  # the last sender of parts of a step
        self._removals = Backoff()
        self._is_ended = False

    def open(self) -> None:
        """Begin to count what arrives.

        Raises
        ------
        NotImplementedError
            With speculative decoding, if the workers do not send it here, or with sampling masks:
            FastDeploy's worker ends in such a step.
        """
        host = self.host
        if host.speculative_decoding:
            if getattr(host, "use_sampling_mask", False):
                raise NotImplementedError(MASKS_AND_DRAFTS)
            if not peer_understands(DRAFTS):
                raise NotImplementedError(UNANNOUNCED)
        self._arrivals = Arrivals(self.sequences, str(host.zmq_server.address), host.channel)
        self.journal.counters.follow(self._arrivals)

    def next(self, patience: float | None) -> Any:
        """Wait for a step, for so many seconds: a list of objects, `Framed` or `Step`; None without one.

        Raises
        ------
        Refused
            If the message is none of these.
        Unread
            If the workers send to the queue.
        """
        content = self._received(patience)
        if not content:  # an empty one wakes us up, to `stop`
            return None
        try:
            step = self._unpickled(content)
            if _is_frame(step):
                step = self.opened(step)
                if isinstance(step, Framed) and step.is_part:
                    self.journal.best_effort("keeping what waits in the socket short", self._keep_few, step)
            elif not isinstance(step, list):
                raise TypeError(f"a {type(step).__name__}, not the list of a step")
            elif self.host.speculative_decoding:
                raise TypeError("objects of a step without accepted tokens, while speculation is on")
        except Exception as error:
            raise Refused from error
        return step

    def _received(self, patience: float | None) -> bytes | None:
        """Wait for a message; None if other work is due first."""
        socket, began = self.host.zmq_server.socket, time.perf_counter()
        if patience is None and self.host.speculative_decoding and not self.journal.counters.steps:
            patience = UNHEARD_S
        try:
            if patience is not None and not socket.poll(1000 * patience):
                self._look_for_queue()
                return None
            content: bytes = socket.recv()
            return content
        finally:
            self.journal.counters.stages.end_receive()
            if self._arrivals is not None:
                self._arrivals.waited += time.perf_counter() - began

    def failed(self, error: Exception) -> tuple[Trouble | None, float | None]:
        """Report why `next` has raised: its trouble, and how long to wait then, in seconds."""
        recorder, refused = self.journal.recorder, error.__cause__
        if isinstance(error, Refused) and refused is not None:
            self.journal.counters.malformed += 1
            name = type(refused).__name__
            text = f"a message was refused: {name}: {refused}"
            place = refused.field if isinstance(refused, MalformedMessage) else "pickle"
            recorder.event(Kind.REFUSED, -1, 0, 0, -1, text=place)
            recorder.rest()
            self.journal.complaints.tell(f"pickle {name}", text)
            return Trouble("refused", text), None
        if isinstance(error, Unread):
            recorder.rest()
            self.journal.complaints.tell("queue", str(error))
            return Trouble("refused", str(error)), None
        if self._is_ended:
            return None, None
        name = type(error).__name__
        text = f"nothing can be received: {name}: {error}"
        recorder.event(Kind.QUEUE_ERROR, -1, getattr(error, "errno", 0) or 0, text=name)
        recorder.rest()
        self.journal.complaints.tell("socket", text)
        return Trouble("queue", text), self._removals.failed()  # no wait, unless it fails again and again

    def _keep_few(self, part: Framed) -> None:
        """Lower the socket's limit, so that parts of long steps wait at the worker.

        Once for each worker, after its first part: ZeroMQ heeds the option in connections that have been
        used, and makes new ones without it.
        """
        if part.sender != self._parts_of:
            self._parts_of = part.sender
            self.host.zmq_server.socket.setsockopt(sys.modules["zmq"].RCVHWM, MOST_WAITING)

    def _look_for_queue(self) -> None:
        """Raise Unread if accepted tokens lie in the System V queue, which is not read here."""
        if self.journal.counters.steps or not self.host.speculative_decoding:
            return
        queue = existing(locate(self.host.channel))
        waiting = 0 if queue is None else queue.current_messages
        if waiting:
            text = (
                f"{waiting} steps lie in the System V queue, and nothing has come over ZeroMQ: the worker "
                "sends speculative decoding's tokens without fd_postproc, whose worker side "
                "FD_USE_GET_SAVE_OUTPUT_V1 needs there; see the worker's log for why it is off"
            )
            raise Unread(text)

    def opened(self, content: bytes) -> Framed | Step:
        """Open a frame of our worker side.

        Raises
        ------
        ValueError
            If it does not add up, or is of speculative decoding where the engine is not, or the reverse.
        """
        host = self.host
        drafts = not host.receives_objects
        step, sections, sender = _open_streamed(content, drafts, host.layout.max_draft)
        opened: Framed | Step = step
        if not drafts:
            opened = Framed(step, sections, sender, bool(host.use_logprobs), self.fd.LogprobsLists)
        self.sequences.note(sender, step.seq or 0)
        return opened

    def _unpickled(self, content: bytes) -> Any:
        """Unpickle a message from FastDeploy's envelope, and record FastDeploy's metrics of it."""
        envelope = pickle.loads(content)  # as FastDeploy's recv_pyobj does; trust: docs/security.md
        if not (isinstance(envelope, dict) and "__meta" in envelope and "send_ts" in envelope["__meta"]):
            return envelope
        delay = time.perf_counter() - envelope["__meta"]["send_ts"]
        self.journal.best_effort("metrics of a message", self._count_message, len(content), delay)
        return envelope["data"]

    def _count_message(self, length: int, delay: float) -> None:
        server = self.host.zmq_server
        module = sys.modules[type(server).recv_pyobj.__module__]
        stats = getattr(module, "ZMQMetricsStats", None)
        if stats is not None:
            sample = stats()
            sample.msg_recv_total += 1
            sample.msg_bytes_recv_total += length
            sample.zmq_latency = delay
            module.main_process_metrics.record_zmq_stats(sample, server.address)

    def wake(self) -> None:
        """Wake a thread that waits for a message, by an empty message."""
        self._is_ended = True
        server, zmq = self.host.zmq_server, sys.modules["zmq"]
        waker = server.context.socket(zmq.PUSH)
        try:
            waker.setsockopt(zmq.LINGER, 1000)
            waker.connect(server.address)
            waker.send(b"")
        finally:
            waker.close()
