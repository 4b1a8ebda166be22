"""Request tracing, switched off: every function returns at once."""

from enum import Enum

tracing_enabled = False


class TraceSpanName(str, Enum):
    PREFILL = "PREFILL"
    DECODE = "DECODE"


def trace_set_thread_info(thread_label, tp_rank=None, dp_rank=None):
    if not tracing_enabled:
        return


def trace_set_proc_propagate_context(rid, trace_context=None, ts=None):
    if not tracing_enabled:
        return


def trace_get_proc_propagate_context(rid):
    if not tracing_enabled:
        return None


def trace_report_span(name, rid, start_time_ns, end_time_ns, attrs=None, thread_finish_flag=False):
    if not tracing_enabled:
        return
