"""Requests that the scheduler of this process has been asked for, and their end with an error."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def table_of(scheduler: Any, name: str) -> dict[str, Any] | None:
    """A table of a scheduler's by request; the data-parallel one keeps a local one.  None: there is none."""
    tables = (getattr(one, name, None) for one in (scheduler, getattr(scheduler, "_scheduler", None)))
    return next((one for one in tables if isinstance(one, dict)), None)


def fail(processor: Any, names: Collection[str], code: int, text: str) -> None:
    """End requests with an error, by FastDeploy's own means: put a last result for each, count, and log."""
    if not names:
        return
    make = processor.fd.RequestOutput
    processor.cached_generated_tokens.put_results(
        [make(request_id=name, finished=True, error_code=code, error_msg=text) for name in names]
    )
    processor.counters.failed_requests += len(names)
    processor.fd.llm_logger.error(
        f"fd_postproc: {len(names)} requests end with an error: {text}: {', '.join(names)}"
    )
