"""The receive loop of FastDeploy's other road: steps come pickled through a ZeroMQ socket.

FastDeploy's own socket is used, which its constructor has bound; nothing of ZeroMQ is imported here.
"""

from __future__ import annotations

import sys
import time
from functools import cached_property
from typing import Any

from ...flight.codes import Kind
from ..stream_frames import is_frame
from .pickles import Pickles
from .receiving import Receiving, Trouble
from .streamed import Streamed


class Sockets(Streamed, Receiving):
    """`process_sampling_results_use_zmq`, and `stop` of either loop."""

    zmq_server: Any = None

    @cached_property
    def pickles(self) -> Pickles:
        """How messages are read."""
        return Pickles(lambda text: self.fd.llm_logger.warning(f"fd_postproc: {text}"))

    def process_sampling_results_use_zmq(self) -> None:
        """Receive and process steps until `stop`."""
        if self.speculative_decoding:
            raise NotImplementedError("FD_USE_GET_SAVE_OUTPUT_V1 does not support speculative decoding")
        self._run_rounds(self._next_message)

    def _next_message(self) -> None:
        """Receive and process a message; what goes wrong is logged and counted."""
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
        """Wait for a message; None if something else has to be seen to meanwhile."""
        socket, patience = self.zmq_server.socket, self._patience()
        try:
            if patience is not None and not (patience > 0 and socket.poll(1000 * patience)):
                self._patient_since = None
                return None
            content: bytes = socket.recv()
        finally:
            self.counters.end_receive()
        self._patient_since = None
        return content

    def _take_message(self, content: bytes) -> None:
        try:
            datas = self._unpickled(content)
            if not isinstance(datas, list) and not is_frame(datas):
                raise TypeError(f"a {type(datas).__name__}, not the list of a step")
        except Exception as error:
            self.counters.malformed += 1
            name = type(error).__name__
            text = f"a message was refused: {name}: {error}"
            self._trouble = Trouble("refused", text, self.counters.steps)
            self.recorder.event(Kind.REFUSED, -1, 0, 0, -1, text="pickle")
            self.recorder.rest()
            self.complaints.tell(f"pickle {name}", text)
            return
        try:
            self._handle(datas)
        except Exception as error:
            self._lose(error)

    def _process_step(self, step: Any) -> None:
        """Process a step that has come in either way."""
        if isinstance(step, list):
            self._process_stream(step)
        elif isinstance(step, bytes):
            self._process_frame(step)
        else:
            super()._process_step(step)

    def _unpickled(self, content: bytes) -> Any:
        """What was sent, out of FastDeploy's envelope, with the metrics that FastDeploy keeps of it."""
        envelope = self.pickles.loads(content)
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
            told = stats()
            told.msg_recv_total += 1
            told.msg_bytes_recv_total += length
            told.zmq_latency = delay
            module.main_process_metrics.record_zmq_stats(told, server.address)

    def stop(self, timeout: float | None = None) -> None:
        """End the receive loop, and close its socket or remove its queue."""
        self._stopping = True
        if self.zmq_server is not None:
            self.best_effort("waking the token thread", self._wake)
        super().stop(timeout)
        if self.zmq_server is not None and not (self.worker is not None and self.worker.is_alive()):
            self.zmq_server.close()

    def _wake(self) -> None:
        """A thread that waits for a message is woken by one without content."""
        server, zmq = self.zmq_server, sys.modules["zmq"]
        waker = server.context.socket(zmq.PUSH)
        try:
            waker.setsockopt(zmq.LINGER, 1000)
            waker.connect(server.address)
            waker.send(b"")
        finally:
            waker.close()
