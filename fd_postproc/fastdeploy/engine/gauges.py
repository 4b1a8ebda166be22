"""The gauges of speculative decoding, set once a step."""

from __future__ import annotations

from typing import Any

from ..._core import Step
from ._results import live_requests

RECORD = "_record_speculative_decoding_metrics"


class GaugesMixin:
    """`set_gauges`: ``_record_speculative_decoding_metrics`` without a Python loop over the batch."""

    fd: Any

    def set_gauges(self: Any, step: Step) -> None:
        """Tell of acceptance so far; stopped and empty slots of the message count too, as in FastDeploy.

        FastDeploy's own method is called if somebody has put another one in its place, and the first time,
        when it also makes the gauges.
        """
        fd = self.fd
        metrics, config = fd.main_process_metrics, self.cfg.speculative_config
        made = "spec_decode_draft_acceptance_rate" in getattr(metrics, "__dict__", ())
        if not made or not self._is_stock(RECORD) or hasattr(type(metrics), "set_value"):
            getattr(self, RECORD)(step.counts)
            return
        heads = self.accept_token_num_per_head
        emitted = sum(heads)
        accepted = emitted - heads[0]
        self.num_accepted_tokens, self.num_emitted_tokens = accepted, emitted
        if emitted == 0:
            return
        metrics.spec_decode_num_accepted_tokens_total.set(accepted)
        metrics.spec_decode_num_emitted_tokens_total.set(emitted)
        if config.method == fd.SpecMethod.NGRAM:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / emitted)
        elif config.method == fd.SpecMethod.MTP:
            self._set_draft_gauges(live_requests(step), accepted, emitted)

    def _set_draft_gauges(self: Any, live: int, accepted: int, emitted: int) -> None:
        metrics, heads = self.fd.main_process_metrics, self.accept_token_num_per_head
        drafts = self.cfg.speculative_config.num_speculative_tokens
        self.num_draft_tokens += live * drafts
        self.max_num_emitted_tokens += live * (drafts + 1)
        metrics.spec_decode_draft_acceptance_rate.set(accepted / self.num_draft_tokens)
        metrics.spec_decode_efficiency.set(emitted / self.max_num_emitted_tokens)
        metrics.spec_decode_num_draft_tokens_total.inc(live * drafts)
        rate = None
        for head in range(min(drafts, len(heads) - 1)):
            if heads[head] != 0:  # else the rate of the head before it is shown, as in FastDeploy
                rate = heads[head + 1] / heads[head]
            metrics.spec_decode_draft_single_head_acceptance_rate[head].set(rate)
