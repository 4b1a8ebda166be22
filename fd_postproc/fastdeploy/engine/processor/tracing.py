"""FastDeploy's traces of a request, where this FastDeploy has them."""

from __future__ import annotations

from typing import Any

from .host import Host
from .journal import Journal


class Tracing:
    """Traces of requests, which `Requests` and `Ending` report; a failure is logged only."""

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd

    @property
    def _module(self) -> Any:
        return getattr(self.fd, "tracing", None)

    def id_of(self, name: str) -> str:
        """The common trace id of a request's choices: its name without the number of the choice."""
        of_build = getattr(self.fd, "get_base_request_id", None)  # not in every FastDeploy
        return name.split("_")[0] if of_build is None else of_build(name)

    def name_thread(self) -> None:
        """Name the token thread in the traces."""
        if self._module is not None:
            self._module.trace_set_thread_info("Token Processor")

    def propagate(self, rid: str, task: Any) -> None:
        """Set the context of a request's trace for this step."""
        tracing = self._module
        if tracing is not None:
            start = task.metrics.inference_start_time
            started_ns = 0 if start is None else int(start * 1_000_000_000)
            propagate = tracing.trace_set_proc_propagate_context
            self.journal.best_effort("tracing", propagate, rid, task.trace_carrier, started_ns)

    def report_span(self, name: str, rid: str, task: Any, ends: bool) -> None:
        """Report a span that began with the request's inference and ends now."""
        tracing, start = self._module, task.metrics.inference_start_time
        if tracing is not None and start is not None:
            self.journal.best_effort("tracing", self._report_span, tracing, name, rid, start, ends)

    def _report_span(self, tracing: Any, name: str, rid: str, start: float, ends: bool) -> None:
        tracing.trace_report_span(
            name=getattr(tracing.TraceSpanName, name),
            rid=rid,
            start_time_ns=int(start * 1e9),
            end_time_ns=int(self.fd.time.time() * 1e9),
            thread_finish_flag=ends,
        )

    def carry(self, rid: str, result: Any) -> None:
        """Put the trace context, which the client's trace continues, into a last result."""
        if self._module is not None:
            self.journal.best_effort("tracing", self._carry, rid, result)

    def _carry(self, rid: str, result: Any) -> None:
        result.trace_carrier = self._module.trace_get_proc_propagate_context(rid=rid)
