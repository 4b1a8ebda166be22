"""Cache transfers of a prefill instance: a request waits for its own a little, and then aside.

FastDeploy's ``_recycle_resources`` waits for a prefilled request's cache transfer without a limit, in the one
token thread: a slow transfer stalls every request.  Here a step waits for `PATIENCE`; then the request is put
by, and its result goes out when its transfer has ended.
"""

from __future__ import annotations

import functools
import types
from functools import cached_property
from typing import Any

from .pairing import Pairing

PATIENCE = 0.05  # seconds that a step waits for a cache transfer before the other requests go on without it
POLL = 0.005


class Transfers(Pairing):
    """`serve_transfers`, for requests that have nothing left to do but to be transferred."""

    @property
    def tells_prefilled(self) -> bool:
        """Whether the scheduler gets the results of a prefill instance, too."""
        return True

    @cached_property
    def transfers(self) -> dict[str, tuple[int, Any, Any]]:
        """Requests of a prefill instance that wait for their cache transfer only: slot, task, result."""
        return {}

    def _transfer_has_ended(self, name: str) -> bool:
        """Wait a little for the end of a request's transfer."""
        clock = self.fd.time
        began = clock.time()
        while True:
            self._ask_for_transfers()
            if name in self.prefill_result_status:
                return True
            if clock.time() - began >= PATIENCE:
                return False
            clock.sleep(POLL)

    def _hand_over(self, slot: int, task: Any, result: Any) -> None:
        """Send a prefilled request to its decode instance, or tell its client why not; free its slot.

        FastDeploy's own text, which does not wait any more: the transfer has ended, or there is none to wait
        for, because it writes the cache into a storage itself.
        """
        name, recycle = task.request_id, self._recycle_resources
        function = getattr(recycle, "__func__", None)  # None: replaced by something that is no method
        if function is not None:
            recycle = functools.partial(function, _AllTransfersKnown(self))
        recycle(name, slot, task, result, True)
        self.prefill_result_status.pop(name, None)  # not every FastDeploy does
        self.forget(name, slot)

    def _ask_for_transfers(self) -> None:
        for name, status in self.engine_worker_queue.get_finished_req():
            self.fd.llm_logger.info(f"request {name}: cache transfer {status}")
            self.prefill_result_status[name] = status

    def serve_transfers(self) -> None:
        """Put the results whose transfer has ended meanwhile."""
        if not self.transfers:
            return
        self.best_effort("asking for cache transfers", self._ask_for_transfers)
        tasks, done = self.resource_manager.tasks_list, []
        for name, (slot, task, result) in list(self.transfers.items()):
            if tasks[slot] is not task:
                # Aborted, or taken away by FastDeploy's other threads, who have seen to its client; the
                # slot may be another request's by now.
                del self.transfers[name]
                self.fd.llm_logger.info(f"request {name}: gone while its cache transfer was under way")
            elif name in self.prefill_result_status:
                del self.transfers[name]
                try:
                    self._hand_over(slot, task, result)
                    self.fd.llm_logger.info(f"request {name}: recycled")
                    if self.tells_prefilled:
                        done.append(result)
                except Exception as error:
                    done.append(self.give_up(slot, task, error))
        if done:
            self.cached_generated_tokens.put_results(done)


class _AllTransfersKnown:
    """A token processor whose queue has no news of cache transfers: FastDeploy's text need not ask again.

    Asking is a call to another process, and what it brings belongs to other requests.
    """

    def __init__(self, processor: Any) -> None:
        self.__dict__["_processor"] = processor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._processor, name)
        if isinstance(value, types.MethodType) and value.__self__ is self._processor:
            return types.MethodType(value.__func__, self)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._processor, name, value)

    @property
    def engine_worker_queue(self) -> Any:
        return self

    @staticmethod
    def get_finished_req() -> list[Any]:
        return []
