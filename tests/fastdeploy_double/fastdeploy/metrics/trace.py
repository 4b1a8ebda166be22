"""Request tracing without OpenTelemetry: the same contexts, spans in a list.  Off until it is switched on."""

import threading
from enum import Enum

tracing_enabled = False
spans = []  # (name, request, start, end) of each finished span, in nanoseconds
contexts = {}  # by request and thread: the span before, or None


class TraceSpanName(str, Enum):
    PREFILL = "PREFILL"
    DECODE = "DECODE"


def trace_set_thread_info(thread_label, tp_rank=None, dp_rank=None):
    if not tracing_enabled:
        return


def trace_set_proc_propagate_context(rid, trace_context=None, ts=None):
    """Begin to trace a request in this thread, unless it is traced already or its sender did not."""
    if not tracing_enabled or not trace_context:
        return
    threads = contexts.setdefault(rid, {})
    threads.setdefault(threading.get_native_id(), trace_context["prev_span"])


def trace_get_proc_propagate_context(rid):
    """What the next process needs.  KeyError for a request of another thread, as in FastDeploy."""
    if not tracing_enabled or rid not in contexts:
        return None
    return {"root_span": {"request": rid}, "prev_span": contexts[rid][threading.get_native_id()]}


def trace_report_span(name, rid, start_time_ns, end_time_ns, attrs=None, thread_finish_flag=False):
    """A span that is over; the last one of a thread ends the tracing there."""
    thread = threading.get_native_id()
    if not tracing_enabled or thread not in contexts.get(rid, ()):
        return
    spans.append((str(name.value), rid, start_time_ns, end_time_ns))
    contexts[rid][thread] = name.value
    if thread_finish_flag:
        del contexts[rid][thread]
        if not contexts[rid]:
            del contexts[rid]
