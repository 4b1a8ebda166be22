#!/usr/bin/env bash
# Guess: a histogram counts an observation of NaN in its bucket +Inf, as a summary counts it.
# Seen: prometheus_client 0.26.0 adds NaN to the sum, which stays NaN until the process ends, and to no bucket:
# the count does not show that anything was observed.  A summary counts it.
# Why it matters: one NaN (a log-probability, an acceptance rate of 0/0) makes every later average NaN, and no rate
# of the count says when.
. "$(dirname "$0")/in-a-temporary-folder" prometheus_client==0.26.0
python > seen <<'P'
from prometheus_client import CollectorRegistry, Histogram, Summary, disable_created_metrics, generate_latest

disable_created_metrics()
registry = CollectorRegistry()
for metric in (Histogram("h", "h", buckets=(1,), registry=registry), Summary("s", "s", registry=registry)):
    for value in (0.5, float("nan"), 0.5):
        metric.observe(value)
print("\n".join(line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"))
P
seen_is <<'S'
h_bucket{le="1.0"} 2.0
h_bucket{le="+Inf"} 2.0
h_count 2.0
h_sum NaN
s_count 3.0
s_sum NaN
S
