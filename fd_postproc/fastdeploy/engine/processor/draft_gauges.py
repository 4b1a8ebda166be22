"""FastDeploy's gauges of speculative decoding: a dozen cost more than the rest of a small step."""

from __future__ import annotations

from typing import Any

from ...._core import Step
from ..results._results import live_requests
from .host import Host
from .journal import Journal

RECORD = "_record_speculative_decoding_metrics"
MTP, NGRAM = "mtp", "ngram"  # to which the members of SpecMethod are equal; FastDeploy 2.5 has none here


class DraftGauges:
    """Counts drafts in the token thread (`count`), sets the gauges in the reporter's (`report`).

    Attributes
    ----------
    is_due : bool
        Whether an update is due.
    """

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd
        self.is_due = False
        self._counted = self._reported = 0  # drafts, by the thread that counts, and by the one that reports

    def count(self, step: Step) -> None:
        """Add a step to the totals; stopped and empty slots count too, as in FastDeploy.

        FastDeploy's own method is called if another one stands in its place, and the first time,
        when it also makes the gauges.
        """
        host, metrics = self.host, self.fd.main_process_metrics
        has_gauges = "spec_decode_draft_acceptance_rate" in getattr(metrics, "__dict__", ())
        if not has_gauges or not host._is_stock(RECORD) or hasattr(type(metrics), "set_value"):
            getattr(host, RECORD)(step.counts)
            return
        heads = host.accept_token_num_per_head
        host.num_emitted_tokens = sum(heads)
        host.num_accepted_tokens = host.num_emitted_tokens - heads[0]
        if host.num_emitted_tokens == 0:
            return
        speculative = host.cfg.speculative_config
        if speculative.method == MTP:
            live, drafts = live_requests(step), speculative.num_speculative_tokens
            host.num_draft_tokens += live * drafts
            host.max_num_emitted_tokens += live * (drafts + 1)
            self._counted += live * drafts
        self.is_due = True
        if not self.host.gauge_period:
            self._set()

    def report(self) -> None:
        """Update the gauges."""
        if self.is_due:
            self.journal.best_effort("gauges of a step", self._set)

    def _set(self) -> None:
        self.is_due = False  # first: a step that is counted meanwhile is reported the next time
        host, metrics = self.host, self.fd.main_process_metrics
        method = host.cfg.speculative_config.method
        accepted, emitted = host.num_accepted_tokens, host.num_emitted_tokens
        metrics.spec_decode_num_accepted_tokens_total.set(accepted)
        metrics.spec_decode_num_emitted_tokens_total.set(emitted)
        if method == NGRAM:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / emitted)
        elif method == MTP:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / host.num_draft_tokens)
            metrics.spec_decode_efficiency.set(emitted / host.max_num_emitted_tokens)
            counted = self._counted
            metrics.spec_decode_num_draft_tokens_total.inc(counted - self._reported)
            self._reported = counted
            self._set_heads(metrics.spec_decode_draft_single_head_acceptance_rate)

    def _set_heads(self, gauges: list[Any]) -> None:
        heads, rate = self.host.accept_token_num_per_head, None
        drafts = self.host.cfg.speculative_config.num_speculative_tokens
        for head in range(min(drafts, len(heads) - 1)):
            if heads[head] != 0:  # else the rate of the head before it is shown, as in FastDeploy
                rate = heads[head + 1] / heads[head]
            gauges[head].set(rate)
