"""Requests that FastDeploy never schedules, for its thread that does so has ended."""

from __future__ import annotations

import time
from typing import Any

GRACE_S = 2.0
"""Seconds for which a request waits before it is ended: its last result may be on its way."""

SCHEDULES = {
    "prepare_request_thread": False,
    "schedule_request_thread": True,
    "insert_task_to_worker_thread": True,
}
"""FastDeploy's threads between scheduler and slots; whether requests of the manager wait for it, too."""

_ERROR = 500


class Unscheduled:
    """Ends requests that wait for a thread that has ended; those that have a slot go on.

    FastDeploy accepts new ones all the same, and their clients would wait for ever.  Nodes of prefill and
    decode are left alone: there, a request gets its slot by other threads.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._ended: set[str] = set()

    def look(self, processor: Any, now: float | None = None) -> None:
        """End what has waited for `GRACE_S`, by FastDeploy's own means."""
        thread = processor.parts.pairing.delivery.ended_thread()
        if thread not in SCHEDULES or processor.cfg.scheduler_config.splitwise_role != "mixed":
            return
        now = time.monotonic() if now is None else now
        asked = set(_requests_of(processor.cached_generated_tokens))
        self._ended &= asked  # the scheduler forgets a request with its last result
        waiting = asked - self._ended - _taken(processor.resource_manager, SCHEDULES[thread])
        self._since = {name: self._since.get(name, now) for name in waiting}
        late = [name for name, since in self._since.items() if now - since >= GRACE_S]
        if not late:
            return
        self._ended.update(late)
        text = f"FastDeploy's {thread} has ended in this engine, which schedules nothing any more; ask again"
        make = processor.fd.RequestOutput
        results = [make(request_id=name, finished=True, error_code=_ERROR, error_msg=text) for name in late]
        processor.counters.failed_requests += len(late)
        processor.fd.llm_logger.error(
            f"fd_postproc: {len(late)} requests end with an error, as {thread} has ended: {', '.join(late)}"
        )
        processor.cached_generated_tokens.put_results(results)


def _requests_of(scheduler: Any) -> dict[str, Any]:
    """The requests of a scheduler in this process; the data-parallel one keeps a local one."""
    for one in (scheduler, getattr(scheduler, "_scheduler", None)):
        table = getattr(one, "requests", None)
        if isinstance(table, dict):
            return dict(table)
    return {}


def _taken(manager: Any, waits_in_manager: bool) -> set[str]:
    """The requests that do not wait for the thread."""
    taken = {task.request_id for task in tuple(manager.tasks_list) if task is not None}
    return taken if waits_in_manager else taken | {*getattr(manager, "requests", {})}
