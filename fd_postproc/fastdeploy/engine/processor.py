"""The token processor that FastDeploy loads: its own, with another receive loop and another batch loop."""

from __future__ import annotations

import os
import threading
import time
import traceback
from functools import cached_property
from typing import Any, NamedTuple

from ..._core import DRAFT, TARGET, Receiver, Step, step_from_tensors
from ...complaints import Backoff, Complaints, last_sender_text
from ...errors import MalformedMessage, QueueError, QueueRemoved
from ...layout import Layout
from ...ops.environment import queue_mode
from ..trial.facts import names_in
from ._results import Batch
from .counters import Counters
from .decode_log import adds_up
from .finish import POLL, FinishMixin
from .gauges import GaugesMixin
from .lifecycle import LifecycleMixin
from .pairing import PATIENCE, AbortsMixin, PairingMixin
from .reporter import Reporter
from .shapes import plan_of
from .slot import MOST_REQUESTS, SlotMixin


def make_class(module: Any) -> type:
    """A subclass of FastDeploy's TokenProcessor that does a step in bulk.

    Parameters
    ----------
    module : module
        ``fastdeploy.output.token_processor``, or something with its names.  They are looked up there at
        each call, so that whatever is patched there is patched here.

    Raises
    ------
    TypeError, AttributeError
        If FastDeploy's classes are not of the kind that is known here.
    """
    stock = module.TokenProcessor
    layout = Layout(
        max_batch=module.MAX_BSZ,
        top_k=module.K,
        max_draft=module.MAX_DRAFT_TOKENS,
        spec_batch=module.SPECULATE_MAX_BSZ,
    )
    body = {
        "fd": module,
        "stock": stock,
        "plan": plan_of(module),
        "layout": layout,
        "aborts_itself": "abort_req_ids_set" in names_in(stock),
        "makes_empty_results": False,  # until the trial has found out
        "__module__": __name__,
        "__doc__": ProcessorMixin.__doc__,
    }
    aborts = (AbortsMixin,) if hasattr(stock, "_put_abort_results") else ()
    sides = (LifecycleMixin, ProcessorMixin, SlotMixin, FinishMixin, GaugesMixin, PairingMixin, *aborts)
    return type("TokenProcessor", (*sides, stock), body)


class SteadyMode(NamedTuple):
    """What the batch loop takes into account when it advances requests itself."""

    metrics: Any  # FastDeploy's, updated by the loop; None: its _record_metrics is called
    decode_log: Any  # on_decode_tokens of the scheduler's logger, if there is one
    sums_decode_log: bool  # and whether it may be told of a step in one call
    decode_role: bool  # an instance that others prefill for
    drops_tokens: bool  # whose tokens of preempted and aborted requests are not told
    speculative: bool


class ProcessorMixin:
    """FastDeploy's token processor, with fd_postproc's receive path and batch loop.

    Everything rare is FastDeploy's own text, called on self.
    """

    fd: Any
    stock: Any
    plan: Any
    layout: Layout

    _receiver: Receiver | None = None
    _stopping = False
    _decode_log_known: tuple[Any, bool] = (None, False)  # a logger, and whether it `adds_up`
    _patient_since: float | None = None  # monotonic seconds; since then something waits for the next step

    # Per object, but made when first asked for: FastDeploy's tests make objects without __init__.
    @cached_property
    def transfers(self) -> dict[str, tuple[int, Any, Any]]:
        """Requests of a prefill instance that wait for their cache transfer only: slot, task, result."""
        return {}

    @cached_property
    def complained(self) -> set[str]:
        """Kinds of failures that were logged already."""
        return set()

    @cached_property
    def commons(self) -> list[Any]:
        """By slot, what its request's metrics were at the last step; kept by the batch loop."""
        return []

    @cached_property
    def counters(self) -> Counters:
        """What this object has done, and how long it took."""
        return Counters()

    @cached_property
    def complaints(self: Any) -> Complaints:
        """What is logged of things that may happen thousands of times a second."""
        return Complaints(lambda text: self.fd.llm_logger.error(f"fd_postproc: {text}"))

    @cached_property
    def removals(self) -> Backoff:
        """How long to wait before a queue is made again."""
        return Backoff()

    # ---- one step ------------------------------------------------------------------------------------

    def _process_batch_output(self: Any) -> None:
        """Process the message in ``output_tokens``, ``output_scores`` and ``output_ranks``."""
        self.counters.begin()
        tensors = [self.output_tokens]
        if self.use_logprobs:
            tensors += [self.output_scores, self.output_ranks]
        self._process_step(step_from_tensors(self.channel, *tensors, layout=self.layout))
        self.tell_gauges()

    @property
    def channel(self: Any) -> str:
        """What the messages are."""
        if self.cfg.speculative_config.method:
            return "spec_topk" if self.use_logprobs else "spec"
        return "topk" if self.use_logprobs else "plain"

    def _process_step(self: Any, step: Step) -> None:
        """Process a decoded message."""
        if step.flag == DRAFT and step.channel == "spec_topk":
            self.postprocess(self.draft_results(step), DRAFT)
            self.counters.begin()  # a draft message is no step, and its time not that of the next one
            return
        masks = self._sampling_masks()
        output_type = step.flag if step.channel == "spec_topk" else TARGET
        counters = self.counters
        batch = Batch(self.plan, self, step, output_type, masks)
        results = batch.results()
        if self.cfg.speculative_config.method:
            self.best_effort("gauges of a step", self.count_drafts, step)
        if batch.is_crowded(MOST_REQUESTS):
            self.best_effort("forgetting requests", self.sweep)
        counters.end_build()
        self.postprocess(results, output_type)
        counters.end_put(len(results))

    def _sampling_masks(self: Any) -> dict[int, Any]:
        """One blocking read a step, if the feature is on."""
        if not getattr(self, "use_sampling_mask", False) or self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            return {}
        if not hasattr(self, "sampling_mask_zmq_server"):
            return {}
        received: list[Any] = []

        def receive() -> None:
            received.append(self.sampling_mask_zmq_server.receive_pyobj_once(block=True)[1])

        self.best_effort("receiving sampling masks", receive)
        return received[0] if received and isinstance(received[0], dict) else {}

    def steady_mode(self: Any) -> SteadyMode | None:
        """What the batch loop may do itself in this step; None if every request must be looked at closely."""
        if self.transfers:
            return None
        role = self.cfg.scheduler_config.splitwise_role
        logger = getattr(self, "scheduler_metrics_logger", None)
        speculative = bool(self.cfg.speculative_config.method)
        if speculative and not self._is_stock("_record_speculative_decoding_accept_num_per_request"):
            return None
        decodes = role == "decode"
        # The benchmark logger's samples are FastDeploy's own method's business.
        fused = self._is_stock("_record_metrics") and not getattr(self, "_benchmark_logger", None)
        return SteadyMode(
            self.fd.main_process_metrics if fused else None,
            logger.on_decode_tokens if logger else None,
            bool(logger) and self._sums_decode_log(logger),
            decodes,
            decodes and not self.aborts_itself and bool(self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER),
            speculative,
        )

    def _sums_decode_log(self: Any, logger: Any) -> bool:
        """Asked in every step, found out once."""
        known, adds = self._decode_log_known
        if known is not logger:
            adds = self._is_stock("_is_decode_stage") and adds_up(logger, self._is_decode_stage)
            self._decode_log_known = logger, adds
        return adds

    def _is_stock(self: Any, name: str) -> bool:
        """Whether a method is FastDeploy's own, neither overridden nor replaced on this object."""
        method = getattr(getattr(self, name), "__func__", None)
        return method is not None and method is getattr(self.stock, name, None)

    # ---- receiving -----------------------------------------------------------------------------------

    def process_sampling_results(self: Any) -> None:
        """Receive and process steps until `stop`."""
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            tracing.trace_set_thread_info("Token Processor")
        self.counters.begin()
        with Reporter(self) as reporter:
            while not self._stopping:
                self._next_round()
                if not reporter.has_news:
                    reporter.notify()

    def _next_round(self: Any) -> None:
        """Receive and process a step; what goes wrong is logged and counted."""
        try:
            step = self._next_step()
            if step is None:
                self.between_steps()
            else:
                self._handle(step)
        except QueueRemoved as error:
            self._receiver = None  # the next round makes a new queue
            if not self._stopping:
                self.complaints.tell("queue removed", f"{error}; a new queue is made")
                time.sleep(self.removals.failed())  # nothing, unless it is removed again and again
        except MalformedMessage as error:
            self.counters.malformed += 1
            text, msqid = f"a message was refused: {error}", self._receiver.msqid
            self.complaints.tell(
                f"{error.channel} {error.field}", lambda: f"{text}; {last_sender_text(msqid)}"
            )
        except QueueError as error:
            self.fd.llm_logger.error(f"fd_postproc: {error}")
            time.sleep(1.0)  # permanent, most likely: do not fill the log
        except Exception as error:
            self.counters.lost_steps += 1
            name = type(error).__name__
            self.complaints.tell(name, f"a step was lost: {name}: {error} {traceback.format_exc()}")

    def _next_step(self: Any) -> Step | None:
        """Wait for a step; None if something else has to be seen to meanwhile."""
        if self._receiver is None:
            self._receiver = Receiver(self.channel, layout=self.layout, mode=queue_mode())
            self._receiver._follows_sender = True
            self.counters.follow(self._receiver)
            if self._stopping:  # `stop` found no receiver whose queue it could remove
                self._receiver.remove()
                return None
        patience = self._patience()
        if patience is not None and patience <= 0:  # nothing but refused messages has come for so long
            self._patient_since = None
            return None
        try:
            step = self._receiver.receive(patience)
        finally:
            self.counters.end_receive()
        self._patient_since = None
        return step

    def _patience(self: Any) -> float | None:
        """How long to wait for a step before something else is due, in seconds; None: there is nothing.

        Messages that are refused meanwhile take nothing away from it and add nothing.
        """
        patience = POLL if self.transfers else None if self._batch_result_buffer is None else PATIENCE
        if patience is None:
            self._patient_since = None
            return None
        now = time.monotonic()
        if self._patient_since is None:
            self._patient_since = now
        return self._patient_since + patience - now

    def _handle(self: Any, step: Step) -> None:
        """Process a step, and keep the stamps by which `healthy` judges."""
        with self.health_lock:
            self.timestamp_for_alive_before_handle_batch = self.fd.time.time()
            self.timestamp_for_alive_after_handle_batch = None
        try:
            self._process_step(step)
        finally:
            with self.health_lock:
                self.timestamp_for_alive_before_handle_batch = None
                self.timestamp_for_alive_after_handle_batch = self.fd.time.time()
        self.serve_transfers()
        self.warm_up()

    def between_steps(self: Any) -> None:
        """See to what waits, when no message has come for a while."""
        if self.transfers:
            self.serve_transfers()
        else:
            self.deliver_waiting()

    def stop(self: Any, timeout: float | None = None) -> None:
        """End the receive loop and remove its queue; FastDeploy's own class has no such method."""
        self._stopping = True
        receiver, worker = self._receiver, self.worker
        if receiver is not None:
            receiver.remove()
        if worker is not None and worker is not threading.current_thread():
            worker.join(timeout)

    # ---- health --------------------------------------------------------------------------------------

    def healthy(self: Any) -> bool:
        """Whether steps are being processed.

        False if the token thread has died, if a batch has been in hand for longer than
        ``FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT``, or if requests are running while the process that sent the
        last step is gone.
        """
        worker = getattr(self, "worker", None)
        if worker is not None and not worker.is_alive():
            return False
        with self.health_lock:  # which the token thread takes twice a step: not for long
            began = self.timestamp_for_alive_before_handle_batch
            busy = self.timestamp_for_alive_after_handle_batch is None and began is not None
            hangs = self.engine_output_token_hang
        if busy:
            return self.fd.time.time() - began <= self.fd.envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT
        return not (hangs or self._sender_is_gone())

    def _sender_is_gone(self: Any) -> bool:
        """Whether requests are running, but the process that sent the last step is not.

        Who sent what was refused does not count: anybody who may write to the queue may have.
        """
        receiver = self._receiver
        if receiver is None or not any(task is not None for task in self.resource_manager.tasks_list):
            return False
        sender = receiver._last_sender
        gone = sender > 0 and not os.path.exists(f"/proc/{sender}")
        if gone:
            receiver._sender_due = 0  # the next step's sender is the one
        return gone
