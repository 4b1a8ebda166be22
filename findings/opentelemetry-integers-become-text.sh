#!/usr/bin/env bash
# Guess: a NumPy number as a span's attribute is sent as that number, or left out.
# Seen: with OpenTelemetry's SDK 1.45.2 for Python float64 is sent as a double; int64, float32 and bool_ become
# text, with one line in the log a value.
# Why it matters: counts of tokens come from NumPy.  A trace's query that sums or compares them finds strings.
. "$(dirname "$0")/in-a-temporary-folder" \
    opentelemetry-sdk==1.45.2 opentelemetry-exporter-otlp-proto-common==1.45.2 numpy==1.26.4
python > seen 2> log <<'P'
import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
with provider.get_tracer("a").start_as_current_span("a") as span:
    for value in (3, np.int64(3), 1.5, np.float64(1.5), np.float32(1.5), True, np.bool_(True)):
        span.set_attribute(f"{type(value).__module__} {type(value).__name__}", value)
for attribute in encode_spans(spans.get_finished_spans()).resource_spans[0].scope_spans[0].spans[0].attributes:
    print(attribute.key, "->", attribute.value.WhichOneof("value"))
P
seen_is <<'S'
builtins int -> int_value
numpy int64 -> string_value
builtins float -> double_value
numpy float64 -> double_value
numpy float32 -> string_value
builtins bool -> bool_value
numpy bool_ -> string_value
S
