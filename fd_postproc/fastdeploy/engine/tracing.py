"""A request's traces, in FastDeploy's versions that have them."""

from __future__ import annotations

from typing import Any

from .best_effort import BestEffort


class Tracing(BestEffort):
    """Trace context and spans of a request."""

    def trace_id_of(self, name: str) -> str:
        """What the traces of a request have in common: its name without the number of the choice."""
        of_build = getattr(self.fd, "get_base_request_id", None)  # not in every FastDeploy
        return name.split("_")[0] if of_build is None else of_build(name)

    def _propagate_trace(self, rid: str, task: Any) -> None:
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            start = task.metrics.inference_start_time
            started_ns = 0 if start is None else int(start * 1_000_000_000)
            carrier = task.trace_carrier
            self.best_effort("tracing", tracing.trace_set_proc_propagate_context, rid, carrier, started_ns)

    def _report_span(self, name: str, rid: str, task: Any, ends: bool) -> None:
        tracing = getattr(self.fd, "tracing", None)
        start = task.metrics.inference_start_time
        if tracing is None or start is None:
            return

        def report() -> None:
            tracing.trace_report_span(
                name=getattr(tracing.TraceSpanName, name),
                rid=rid,
                start_time_ns=int(start * 1e9),
                end_time_ns=int(self.fd.time.time() * 1e9),
                thread_finish_flag=ends,
            )

        self.best_effort("tracing", report)

    def _carry_trace(self, rid: str, result: Any) -> None:
        """Give a last result the context that the client's trace goes on with."""
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            self.best_effort("tracing", _set_carrier, tracing, rid, result)


def _set_carrier(tracing: Any, rid: str, result: Any) -> None:
    result.trace_carrier = tracing.trace_get_proc_propagate_context(rid=rid)
