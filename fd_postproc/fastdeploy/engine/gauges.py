"""The gauges of speculative decoding: totals kept at every step, told a few times a second."""

from __future__ import annotations

from typing import Any

from ..._core import Step
from ._results import live_requests
from .best_effort import BestEffort

RECORD = "_record_speculative_decoding_metrics"
MTP, NGRAM = (
    "mtp",
    "ngram",
)  # names, to which the members of SpecMethod are equal; FastDeploy 2.5 has none here


class Gauges(BestEffort):
    """`count_drafts` and `set_gauges`: together ``_record_speculative_decoding_metrics``.

    A dozen gauges cost more than the rest of a small step, and nobody reads them a hundred times a second.
    """

    gauge_period = 0.1
    """Seconds between two updates of the gauges while steps come quickly; 0: at every step."""

    gauges_wait = False
    """Whether there is something to tell."""

    # Written by whoever counts, and by whoever tells.
    _drafts_counted = 0
    _drafts_told = 0

    def count_drafts(self, step: Step) -> None:
        """Add a step to the totals; stopped and empty slots of the message count too, as in FastDeploy.

        FastDeploy's own method is called if somebody has put another one in its place, and the first time,
        when it also makes the gauges.
        """
        metrics = self.fd.main_process_metrics
        made = "spec_decode_draft_acceptance_rate" in getattr(metrics, "__dict__", ())
        if not made or not self._is_stock(RECORD) or hasattr(type(metrics), "set_value"):
            getattr(self, RECORD)(step.counts)
            return
        heads = self.accept_token_num_per_head
        self.num_emitted_tokens = sum(heads)
        self.num_accepted_tokens = self.num_emitted_tokens - heads[0]
        if self.num_emitted_tokens == 0:
            return
        if self.cfg.speculative_config.method == MTP:
            live, drafts = live_requests(step), self.cfg.speculative_config.num_speculative_tokens
            self.num_draft_tokens += live * drafts
            self.max_num_emitted_tokens += live * (drafts + 1)
            self._drafts_counted += live * drafts
        self.gauges_wait = True
        if not self.gauge_period:
            self.set_gauges()

    def report_gauges(self) -> None:
        """Bring the gauges up to date."""
        if self.gauges_wait:
            self.best_effort("gauges of a step", self.set_gauges)

    def set_gauges(self) -> None:
        """Tell of acceptance so far."""
        self.gauges_wait = False  # first: a step that is counted meanwhile is told the next time
        metrics = self.fd.main_process_metrics
        method = self.cfg.speculative_config.method
        accepted, emitted = self.num_accepted_tokens, self.num_emitted_tokens
        metrics.spec_decode_num_accepted_tokens_total.set(accepted)
        metrics.spec_decode_num_emitted_tokens_total.set(emitted)
        if method == NGRAM:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / emitted)
        elif method == MTP:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / self.num_draft_tokens)
            metrics.spec_decode_efficiency.set(emitted / self.max_num_emitted_tokens)
            counted = self._drafts_counted
            metrics.spec_decode_num_draft_tokens_total.inc(counted - self._drafts_told)
            self._drafts_told = counted
            self._set_head_gauges(metrics.spec_decode_draft_single_head_acceptance_rate)

    def _set_head_gauges(self, gauges: list[Any]) -> None:
        heads, rate = self.accept_token_num_per_head, None
        for head in range(min(self.cfg.speculative_config.num_speculative_tokens, len(heads) - 1)):
            if heads[head] != 0:  # else the rate of the head before it is shown, as in FastDeploy
                rate = heads[head + 1] / heads[head]
            gauges[head].set(rate)
