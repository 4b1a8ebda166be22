"""Cache transfers of a prefill instance.

FastDeploy's ``_recycle_resources`` waits for a prefilled request's cache transfer without a limit, in the one
token thread: a slow transfer stalls every request.  Here a step waits for `TRANSFER_WAIT_S`; then the
request is put by, and its result goes out when its transfer has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from .host import Host
from .journal import Journal

TRANSFER_WAIT_S = 0.05  # seconds that a step waits for a cache transfer before other requests go on
POLL = 0.005
STORAGE = "FD_PD_TRANSFER_VIA_STORAGE"
"""Switch of some versions: prefill instances write the cache into a storage themselves."""


class Transfers:
    """Requests that wait for nothing but their cache transfer; `Ending` adds them and takes them out.

    Attributes
    ----------
    waiting : dict of str to (int, request, result)
        By request, with its slot.
    """

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd
        self.waiting: dict[str, tuple[int, Any, Any]] = {}
        self._lock = threading.Lock()  # FastDeploy clears data in another thread

    def has_ended(self, name: str) -> bool:
        """Whether nothing is left to wait for; waits briefly for the end of a request's transfer."""
        if getattr(self.fd.envs, STORAGE, False):
            return True
        clock = self.fd.time
        began = clock.time()
        while True:
            self._ask()
            if name in self.host.prefill_result_status:
                return True
            if clock.time() - began >= TRANSFER_WAIT_S:
                return False
            clock.sleep(POLL)

    def _ask(self) -> None:
        for name, status in self.host.engine_worker_queue.get_finished_req():
            self.fd.llm_logger.info(f"request {name}: cache transfer {status}")
            self.host.prefill_result_status[name] = status

    def hand_over(self, slot: int, task: Any, result: Any) -> None:
        """Send a prefilled request to its decode instance, or report why not; free its slot.

        FastDeploy's own text, which does not wait any more: the transfer has ended, or there is none to wait
        for, because it writes the cache into a storage itself.
        """
        host, name = self.host, task.request_id
        with self._lock:
            queue, host.engine_worker_queue = host.engine_worker_queue, _NoNews()
            try:
                host._recycle_resources(name, slot, task, result, True)
            finally:
                host.engine_worker_queue = queue
        host.prefill_result_status.pop(name, None)  # not every FastDeploy does

    def taken(self) -> Iterator[tuple[int, Any, Any]]:
        """Take out the requests whose transfer has ended, and forget those that are gone."""
        self.journal.best_effort("asking for cache transfers", self._ask)
        tasks = self.host.resource_manager.tasks_list
        for name, (slot, task, result) in list(self.waiting.items()):
            if tasks[slot] is not task:
                # Aborted, or taken away by FastDeploy's other threads, who have seen to its client; the
                # slot may be another request's by now.
                del self.waiting[name]
                self.fd.llm_logger.info(f"request {name}: gone while its cache transfer was under way")
            elif name in self.host.prefill_result_status:
                del self.waiting[name]
                yield slot, task, result


class _NoNews:
    """The workers' queue without news of cache transfers.

    Asking is a call to another process, and what it brings belongs to other requests.
    """

    @staticmethod
    def get_finished_req() -> list[Any]:
        return []
