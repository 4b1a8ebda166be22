"""Whether the batch loop may advance requests itself, by what FastDeploy looks at in every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from .best_effort import BestEffort
from .context import SteadyMode
from .decode_log import adds_up


class Steady(BestEffort):
    """`steady_mode`."""

    _decode_log_known: tuple[Any, bool] = (None, False)  # a logger, and whether it `adds_up`

    @cached_property
    def commons(self) -> list[Any]:
        """By slot, what its request's metrics were at the last step; kept by the batch loop."""
        return []

    def steady_mode(self) -> SteadyMode | None:
        """What the batch loop may do itself in this step; None if every request must be looked at closely."""
        fd, manager = self.fd, self.resource_manager
        role = self.cfg.scheduler_config.splitwise_role
        logger = getattr(self, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        speculative = bool(self.cfg.speculative_config.method)
        if speculative and not self._is_stock("_record_speculative_decoding_accept_num_per_request"):
            return None
        decodes = role == "decode"
        # The benchmark logger's samples are FastDeploy's own method's business.
        fused = self._is_stock("_record_metrics") and not getattr(self, "_benchmark_logger", None)
        at_once = bool(logger) and self._sums_decode_log(logger)
        drops = decodes and not self.aborts_itself and bool(fd.envs.ENABLE_V1_KVCACHE_SCHEDULER)
        return SteadyMode(
            fd.time.time(),
            self.tokens_counter,
            self.commons,
            fd.main_process_metrics if fused else None,
            self._record_metrics,
            logger.on_decode_tokens if logger and at_once else None,
            partial(self.log_decoding, logger.on_decode_tokens) if logger and not at_once else None,
            decodes,
            (manager.to_be_rescheduled_request_id_set, manager.to_be_aborted_req_id_set) if drops else (),
            self.total_step_per_request if speculative else None,
            self.accept_token_num_per_head_per_request if speculative else None,
            fd.MAX_DRAFT_TOKENS if speculative else 0,
            False,
        )

    def log_decoding(self, log: Callable[[int], None], task: Any, tokens: int) -> None:
        """Tell the scheduler's log of tokens, if the request is past its prefill."""
        if self._is_decode_stage(task):
            log(tokens)

    def _sums_decode_log(self, logger: Any) -> bool:
        """Asked in every step, found out once."""
        known, adds = self._decode_log_known
        if known is not logger:
            adds = self._is_stock("_is_decode_stage") and adds_up(logger, self._is_decode_stage)
            self._decode_log_known = logger, adds
        return adds
