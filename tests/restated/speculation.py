"""Acceptance statistics of speculative decoding."""

from __future__ import annotations

import itertools
from typing import Any

from .state import State

RESET_ABOVE = 1_000_000  # output tokens
MTP, NGRAM = "mtp", "ngram"  # the members of newer versions' SpecMethod are equal to their names


class SpeculationMixin(State):
    """Tables per request and per head, the gauges of a step, and what a finished request is told."""

    def _record_speculative_decoding_accept_num_per_request(self, req_id: str, accept_num: int) -> None:
        """Count a step of a request.  Codes and 0 count as steps too, and 7 raises: as upstream."""
        steps, by_request = self.total_step_per_request, self.accept_token_num_per_head_per_request
        if req_id not in steps:
            steps[req_id] = 0
        if req_id not in by_request:
            by_request[req_id] = [0] * self.fd.MAX_DRAFT_TOKENS
        steps[req_id] += 1
        for head in range(accept_num):
            by_request[req_id][head] += 1
            self.accept_token_num_per_head[head] += 1

    def _record_speculative_decoding_metrics(self, accept_num: Any) -> None:
        """Set the gauges; called once a step, with the counts of all slots, stopped ones included."""
        metrics, config = self.fd.main_process_metrics, self.cfg.speculative_config
        if not hasattr(metrics, "spec_decode_draft_acceptance_rate"):
            metrics._init_speculative_metrics(config.method, config.num_speculative_tokens)

        per_head = self.accept_token_num_per_head
        live = sum(1 for count in accept_num if count > 0)
        self.num_accepted_tokens, self.num_emitted_tokens = sum(per_head[1:]), sum(per_head)
        accepted, emitted = self.num_accepted_tokens, self.num_emitted_tokens
        if emitted == 0:
            return
        metrics.spec_decode_num_accepted_tokens_total.set(accepted)
        metrics.spec_decode_num_emitted_tokens_total.set(emitted)
        if config.method == NGRAM:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / emitted)
        if config.method == MTP:
            drafted = live * config.num_speculative_tokens
            self.num_draft_tokens += drafted
            self.max_num_emitted_tokens += live + drafted
            metrics.spec_decode_draft_acceptance_rate.set(accepted / self.num_draft_tokens)
            metrics.spec_decode_efficiency.set(emitted / self.max_num_emitted_tokens)
            metrics.spec_decode_num_draft_tokens_total.inc(drafted)
            for head in range(config.num_speculative_tokens):
                # A head after one that never accepted shows the rate before it; six drafts and a full
                # acceptance index past the table: as upstream.
                if per_head[head] != 0:
                    rate = per_head[head + 1] / per_head[head]
                metrics.spec_decode_draft_single_head_acceptance_rate[head].set(rate)

    def _compute_speculative_status(self, result: Any) -> None:
        """Log the totals, attach the request's statistics to its result, and forget the request."""
        log, config = self.fd.spec_logger, self.cfg.speculative_config
        steps, tokens = self.total_step, self.number_of_output_tokens
        global_ratio = 1 - steps / tokens
        log.info(f"accepted: {global_ratio}, {steps} steps, {tokens} tokens, {tokens / steps} a step")
        if config.method == MTP:
            heads, used = self.accept_token_num_per_head, range(1, config.num_speculative_tokens + 1)
            log.info(
                f"accepted by head: {[heads[head] / heads[head - 1] for head in used if heads[head - 1]]}"
            )
        if tokens > RESET_ABOVE:
            self.number_of_output_tokens = self.total_step = 0
        self.speculative_stats_step += 1

        name = result.request_id
        per_head, own_steps = (
            self.accept_token_num_per_head_per_request[name],
            self.total_step_per_request[name],
        )
        accepted = sum(per_head)
        # Zero when the request ends before its first accepted token: ZeroDivisionError, as upstream.
        ratio, length = 1 - own_steps / accepted, accepted / own_steps
        pairs = itertools.pairwise(per_head)
        rates = [after / before if before != 0 else 0 for before, after in pairs]
        drafts = config.num_speculative_tokens
        result.metrics.speculate_metrics = self.fd.SpeculateMetrics(
            accepted_tokens=accepted,
            rejected_tokens=own_steps * (drafts + 1) - accepted,
            accept_ratio=ratio,
            average_accept_length=length,
            accepted_tokens_per_head=per_head[: drafts + 1],
            accept_ratio_per_head=rates[:drafts],
        )
        log.info(f"{name}: {own_steps} steps, {result.metrics.speculate_metrics}")
        self.accept_token_num_per_head_per_request.pop(name)
        self.total_step_per_request.pop(name)
