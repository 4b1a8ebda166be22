"""The receive loop of FastDeploy's ZeroMQ transport, whose steps come pickled.

FastDeploy's own socket is used, which its constructor has bound; nothing of ZeroMQ is imported here.
"""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

from ...._core import Sequences, _is_frame
from ....environment import DRAFTS, PEER
from ....errors import MalformedMessage
from ....flight.codes import Kind
from ....ops.environment import peer_understands
from ....queues import list_queues, locate
from ..processor.receiving import Receiving, Trouble
from ..results._results import Stages
from .frame_step import Framed
from .object_step import Streamed

MASKS_AND_DRAFTS = (
    "FD_USE_GET_SAVE_OUTPUT_V1 does not support sampling masks with speculative decoding: FastDeploy's "
    "save_output_speculate asserts that there is a queue of sampling masks, which its workers do not make "
    "then; turn one of the three off"
)
UNANNOUNCED = (
    "FD_USE_GET_SAVE_OUTPUT_V1 does not support speculative decoding in FastDeploy, and the plug-in has not "
    f"announced to the workers that it takes accepted tokens there ({PEER.name} lacks {DRAFTS}): "
    "the engine's log says why; or turn one of the two off"
)
MOST_WAITING = 2
"""Limit of messages in the socket, where one may be a piece of a step of many megabytes."""
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


class Sockets(Streamed, Receiving):
    """Mix-in of `process_sampling_results_use_zmq`, and of `stop` for either loop."""

    zmq_server: Any = None
    arrivals: Arrivals | None = None
    _kept_few: int | None = None  # the last sender of pieces

    def process_sampling_results_use_zmq(self) -> None:
        """Receive and process steps until `stop`.

        Raises
        ------
        NotImplementedError
            With speculative decoding, if the workers were not told to send it here, or with sampling masks:
            FastDeploy's worker ends in such a step.
        """
        if self.speculative_decoding:
            if getattr(self, "use_sampling_mask", False):
                raise NotImplementedError(MASKS_AND_DRAFTS)
            if not peer_understands(DRAFTS):
                raise NotImplementedError(UNANNOUNCED)
        self.arrivals = Arrivals(self.sequences, str(self.zmq_server.address), self.channel)
        self.counters.follow(self.arrivals)
        self._run_rounds(self._next_message)

    def _keep_few(self, piece: Framed) -> None:
        """Lower the socket's limit, so that pieces of long steps wait at the worker.

        Once for each worker, after its first piece: ZeroMQ heeds the option in connections that have been
        used, and makes new ones without it.
        """
        if piece.sender != self._kept_few:
            self._kept_few = piece.sender
            self.zmq_server.socket.setsockopt(sys.modules["zmq"].RCVHWM, MOST_WAITING)

    def _next_message(self, _: Stages) -> None:
        """Receive and process a message; log and count what goes wrong."""
        try:
            content = self._received()
        except Exception as error:
            if not self._stopping:
                name = type(error).__name__
                text = f"nothing can be received: {name}: {error}"
                self._trouble = Trouble("queue", text, self.counters.steps)
                self.recorder.event(Kind.QUEUE_ERROR, -1, getattr(error, "errno", 0) or 0, text=name)
                self.recorder.rest()
                self.complaints.tell("socket", text)
                time.sleep(self.removals.failed())  # nothing, unless it fails again and again
            return
        if content:
            self._take_message(content)
            return
        self.recorder.rest()
        if content is None:  # an empty one wakes us up, to `stop`
            self.between_steps()

    def _received(self) -> bytes | None:
        """Wait for a message; None if other work is due first."""
        socket, patience, began = self.zmq_server.socket, self._patience(), time.perf_counter()
        if self.speculative_decoding and not self.counters.steps and patience is None:
            patience = UNHEARD_S
        try:
            if patience is not None and not (patience > 0 and socket.poll(1000 * patience)):
                self._patient_since = None
                self._look_for_queue()
                return None
            content: bytes = socket.recv()
        finally:
            self.counters.stages.end_receive()
            if self.arrivals is not None:
                self.arrivals.waited += time.perf_counter() - began
        self._patient_since = None
        return content

    def _look_for_queue(self) -> None:
        """Report accepted tokens in the System V queue, which is not read here."""
        if self.counters.steps or not self.speculative_decoding:
            return
        key = locate(self.channel)
        waiting = sum(queue.messages for queue in list_queues() if queue.key == key)
        if waiting:
            text = (
                f"{waiting} steps lie in the System V queue, and nothing has come over ZeroMQ: the worker "
                "sends speculative decoding's tokens without fd_postproc, whose worker side "
                "FD_USE_GET_SAVE_OUTPUT_V1 needs there; see the worker's log for why it is off"
            )
            self._trouble = Trouble("refused", text, self.counters.steps)
            self.complaints.tell("queue", text)

    def _take_message(self, content: bytes) -> None:
        try:
            step = self._unpickled(content)
            if _is_frame(step):
                step = self._opened(step)
                if isinstance(step, Framed) and step.is_part:
                    self.best_effort("keeping what waits in the socket short", self._keep_few, step)
            elif not isinstance(step, list):
                raise TypeError(f"a {type(step).__name__}, not the list of a step")
            elif self.speculative_decoding:
                raise TypeError("objects of a step without accepted tokens, while speculation is on")
        except Exception as error:
            self._refuse(error)
            return
        try:
            self._handle(step)
        except Exception as error:
            self._lose(error)

    def _refuse(self, error: Exception) -> None:
        self.counters.malformed += 1
        name = type(error).__name__
        text = f"a message was refused: {name}: {error}"
        self._trouble = Trouble("refused", text, self.counters.steps)
        place = error.field if isinstance(error, MalformedMessage) else "pickle"
        self.recorder.event(Kind.REFUSED, -1, 0, 0, -1, text=place)
        self.recorder.rest()
        self.complaints.tell(f"pickle {name}", text)

    def _process_step(self, step: Any, stages: Stages | None = None) -> None:
        """Process a step from either transport."""
        if isinstance(step, list):
            self._process_stream(step)
        elif isinstance(step, Framed):
            self._process_framed(step)
        else:
            super()._process_step(step, stages)

    def _unpickled(self, content: bytes) -> Any:
        """Unpickle a message from FastDeploy's envelope, and record FastDeploy's metrics of it."""
        envelope = pickle.loads(content)  # as FastDeploy's recv_pyobj does; trust: docs/security.md
        if not (isinstance(envelope, dict) and "__meta" in envelope and "send_ts" in envelope["__meta"]):
            return envelope
        delay = time.perf_counter() - envelope["__meta"]["send_ts"]
        self.best_effort("metrics of a message", self._count_message, len(content), delay)
        return envelope["data"]

    def _count_message(self, length: int, delay: float) -> None:
        server = self.zmq_server
        module = sys.modules[type(server).recv_pyobj.__module__]
        stats = getattr(module, "ZMQMetricsStats", None)
        if stats is not None:
            sample = stats()
            sample.msg_recv_total += 1
            sample.msg_bytes_recv_total += length
            sample.zmq_latency = delay
            module.main_process_metrics.record_zmq_stats(sample, server.address)

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop, and close its socket or remove its queue."""
        self._stopping = True
        if self.zmq_server is not None:
            self.best_effort("waking the token thread", self._wake)
        super().stop(timeout)
        if self.zmq_server is not None and not (self.worker is not None and self.worker.is_alive()):
            self.zmq_server.close()

    def _wake(self) -> None:
        """Wake a thread that waits for a message, by an empty message."""
        server, zmq = self.zmq_server, sys.modules["zmq"]
        waker = server.context.socket(zmq.PUSH)
        try:
            waker.setsockopt(zmq.LINGER, 1000)
            waker.connect(server.address)
            waker.send(b"")
        finally:
            waker.close()
