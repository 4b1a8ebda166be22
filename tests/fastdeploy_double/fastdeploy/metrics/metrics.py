"""The metrics that the version's token processor updates, on real prometheus_client objects."""

from prometheus_client import (
    REGISTRY,
    Counter,
    Gauge,
    Histogram,
)

from fastdeploy._shapes import recording

TYPES = {"Counter": Counter, "Gauge": Gauge, "Histogram": Histogram}
METRICS = {
    attribute: (TYPES[told["type"]], told["name"].removeprefix("fastdeploy:"), told["buckets"])
    for attribute, told in recording()["metrics"].items()
}

# The first two are gauges because the token processor sets them.
SPECULATIVE_METRICS = {
    "spec_decode_num_accepted_tokens_total": (Gauge, "Draft tokens accepted"),
    "spec_decode_num_emitted_tokens_total": (Gauge, "Tokens emitted"),
    "spec_decode_draft_acceptance_rate": (Gauge, "Share of draft tokens that were accepted"),
    "spec_decode_efficiency": (Gauge, "Tokens emitted of those possible"),
    "spec_decode_num_draft_tokens_total": (Counter, "Draft tokens made"),
}
MTP_ONLY = ("spec_decode_efficiency", "spec_decode_num_draft_tokens_total")
HEADS = "spec_decode_draft_single_head_acceptance_rate"


class MetricsManager:
    """Holds the metrics as attributes; those of speculative decoding appear on first use."""

    def __init__(self, registry=REGISTRY):
        self._registry = registry
        self._speculative = []
        for attribute, (kind, name, buckets) in METRICS.items():
            options = {} if buckets is None else {"buckets": buckets}
            description = attribute.replace("_", " ")
            setattr(self, attribute, self._make(kind, name, description, **options))

    def _make(self, kind, name, description, **options):
        return kind(f"fastdeploy:{name}", description, registry=self._registry, **options)

    def _init_speculative_metrics(self, speculative_method, num_speculative_tokens):
        """Make the metrics of a speculative method: "mtp" has more of them than "ngram"."""
        for attribute, (kind, description) in SPECULATIVE_METRICS.items():
            if speculative_method == "mtp" or attribute not in MTP_ONLY:
                setattr(self, attribute, self._make(kind, attribute, description))
                self._speculative.append(attribute)
        if speculative_method == "mtp":
            heads = [
                self._make(Gauge, f"{HEADS}_{head}", f"Acceptance rate of head {head}")
                for head in range(num_speculative_tokens)
            ]
            setattr(self, HEADS, heads)
            self._speculative.append(HEADS)

    def collectors(self):
        """Every metric object."""
        for name in (*METRICS, *self._speculative):
            metric = getattr(self, name)
            yield from metric if isinstance(metric, list) else [metric]

    def reset(self):
        """Start from zero, as in a new process.  The memory-mapped values would otherwise outlive a test."""
        for metric in self.collectors():
            for value in stored_values(metric):
                value.set(0.0)
        for name in self._speculative:
            metric = getattr(self, name)
            for one in metric if isinstance(metric, list) else [metric]:
                self._registry.unregister(one)
            delattr(self, name)
        self._speculative = []


def stored_values(metric):
    """The values that a metric keeps: one, or a histogram's sum and its buckets, not cumulated."""
    if isinstance(metric, Histogram):
        return [metric._sum, *metric._buckets]
    return [metric._value]


main_process_metrics = MetricsManager()
