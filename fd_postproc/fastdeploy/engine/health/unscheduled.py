"""Requests that FastDeploy never schedules, for its thread that does so has ended."""

from __future__ import annotations

import time
from typing import Any

from .scheduler_requests import fail, table_of

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
        """End what has waited for `GRACE_S`."""
        threads = SCHEDULES.keys() & processor.parts.pairing.delivery.ended_threads()
        if not threads or processor.cfg.scheduler_config.splitwise_role != "mixed":
            return
        now = time.monotonic() if now is None else now
        manager = processor.resource_manager
        taken = {task.request_id for task in tuple(manager.tasks_list) if task is not None}
        if not any(SCHEDULES[thread] for thread in threads):
            taken.update(getattr(manager, "requests", {}))
        asked = set(table_of(processor.cached_generated_tokens, "requests") or ())
        self._ended &= asked  # the scheduler forgets a request with its last result
        self._since = {name: self._since.get(name, now) for name in asked - self._ended - taken}
        late = [name for name, since in self._since.items() if now - since >= GRACE_S]
        ended = " and ".join(sorted(threads))
        text = f"FastDeploy's {ended} has ended in this engine, which schedules nothing any more; ask again"
        fail(processor, late, _ERROR, text)
        self._ended.update(late)
