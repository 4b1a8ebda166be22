"""The metrics that the token processor updates, on real prometheus_client objects without labels."""

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from fastdeploy.metrics import build_1_2_5_buckets

REQUEST_LATENCY_BUCKETS = [
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
]

# attribute: (type, name after "fastdeploy:", description, buckets)
METRICS = {
    "time_to_first_token": (
        Histogram,
        "time_to_first_token_seconds",
        "Time from arrival to the first token",
        [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0],
    ),
    "time_per_output_token": (
        Histogram,
        "time_per_output_token_seconds",
        "Time between two steps of a request",
        [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0],
    ),
    "request_queue_time": (
        Histogram,
        "request_queue_time_seconds",
        "Time from preprocessing to inference",
        REQUEST_LATENCY_BUCKETS,
    ),
    "request_prefill_time": (
        Histogram,
        "request_prefill_time_seconds",
        "Time from the start of inference to the first token",
        REQUEST_LATENCY_BUCKETS,
    ),
    "request_decode_time": (
        Histogram,
        "request_decode_time_seconds",
        "Time from the first to the last token",
        REQUEST_LATENCY_BUCKETS,
    ),
    "request_inference_time": (
        Histogram,
        "request_inference_time_seconds",
        "Time from the start of inference to the last token",
        REQUEST_LATENCY_BUCKETS,
    ),
    "request_generation_tokens": (
        Histogram,
        "request_generation_tokens",
        "Tokens of a request",
        build_1_2_5_buckets(33792),
    ),
    "request_token_ratio": (
        Histogram,
        "request_token_ratio",
        "Tokens a second of a request",
        [8, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110],
    ),
    "generation_tokens_total": (Counter, "generation_tokens_total", "Tokens of all requests", None),
    "request_success_total": (Counter, "request_success_total", "Finished requests", None),
    "available_gpu_block_num": (Gauge, "available_gpu_block_num", "Free cache blocks", None),
    "batch_size": (Gauge, "batch_size", "Occupied slots", None),
    "available_batch_size": (Gauge, "available_batch_size", "Free slots", None),
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
        for attribute, (kind, name, description, buckets) in METRICS.items():
            options = {} if buckets is None else {"buckets": buckets}
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


def get_filtered_metrics():
    """The text that a scrape gets: the values of all processes that share the folder."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return generate_latest(registry).decode()


main_process_metrics = MetricsManager()
