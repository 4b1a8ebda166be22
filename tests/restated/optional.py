"""What not every version of FastDeploy has: one class for each feature."""

from __future__ import annotations

from typing import Any

from .finish import OK
from .state import State

ABORT_STAMPS = (
    "arrival_time",
    "inference_start_time",
    "engine_recv_latest_token_time",
    "engine_recv_first_token_time",
    "request_start_time",
)


class MasksMixin(State):
    """Sampling masks, which come over a socket beside the messages."""

    def _receive_sampling_masks(self) -> dict[int, Any]:
        """One blocking read a step, if the feature is on."""
        if not self.use_sampling_mask or self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            return {}
        if not hasattr(self, "sampling_mask_zmq_server"):
            return {}
        _, masks = self.sampling_mask_zmq_server.receive_pyobj_once(block=True)
        return masks if isinstance(masks, dict) else {}


class GapsMixin(State):
    """Times between the steps of a request, for the benchmark logger."""

    def _note_gap(self, task: Any, gap: float) -> None:
        if self._benchmark_logger:
            if not hasattr(task, "_itl_samples"):
                task._itl_samples = []
            task._itl_samples.append(gap)


class AbortResultsMixin(State):
    """Results of aborted requests."""

    def _put_aborted(self, task: Any) -> None:
        self._put_abort_results(task)

    def _put_abort_results(self, task: Any) -> None:
        """Deliver the end of an aborted request at once, ahead of the batch.  Missing stamps become now."""
        fd, now = self.fd, self.fd.time.time()
        stamps = fd.copy.copy(task.metrics)
        for stamp in ABORT_STAMPS:
            if not getattr(stamps, stamp):
                setattr(stamps, stamp, now)
        outputs = fd.CompletionOutput(
            index=0,
            send_idx=self.tokens_counter.get(task.request_id),
            token_ids=[getattr(task, "eos_token_ids", [0])[0]],
        )
        aborted = fd.RequestOutput(
            request_id=task.request_id,
            finished=True,
            outputs=outputs,
            metrics=stamps,
            error_code=OK,
            error_msg="Aborted",
        )
        self.cached_generated_tokens.put_results([aborted])


class RoutingMixin(State):
    """Expert routing of a request, for a replay."""

    def _hand_over_routing(self, task_id: str, task: Any, result: Any, is_prefill: bool) -> None:
        self._finalize_routing(task_id, task, result, is_prefill)

    def _finalize_routing(self, task_id: str, task: Any, result: Any, is_prefill: bool = False) -> None:
        """Expert routing replay; restated only as far as being switched off."""
        if self.cfg.routing_replay_config.enable_routing_replay:
            raise NotImplementedError(
                "the restated step has no routing replay; set enable_routing_replay=False"
            )
