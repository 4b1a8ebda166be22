"""Letting go of a request: its slot is freed, what is kept about it dropped, its client told of an error."""

from __future__ import annotations

import os
import traceback
from typing import Any

from .tracing import Tracing

ERROR = 500
TABLES = ("tokens_counter", "total_step_per_request", "accept_token_num_per_head_per_request")
MOST_REQUESTS = 4096  # entries of a table before it is swept


class Release(Tracing):
    """`give_up`, `forget` and `sweep`."""

    def give_up(self, slot: int, task: Any, error: Exception) -> Any:
        """End a request whose step raised; the result that tells its client."""
        name = getattr(task, "request_id", None)
        frames = traceback.extract_tb(error.__traceback__)
        self.counters.failed_requests += 1
        text = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.fd.llm_logger.error(f"fd_postproc: request {name} (slot {slot}) ends with an error: {details}")
        if not isinstance(name, str):
            return None
        self.recorder.failed(slot, name, error)
        metrics = getattr(task, "metrics", None)
        if not isinstance(metrics, self.fd.RequestMetrics):
            # What cannot be turned into a dict would take the batch with it.
            metrics = self.fd.RequestMetrics()
        metrics = self.plan.copy_metrics(metrics)
        result = self.plan.new_result(slot, self.tokens_counter.get(name, 0), name, 3, metrics)
        result.finished = True
        result.error_code = ERROR
        where = f" in {os.path.basename(frames[-1].filename)}" if frames else ""
        result.error_msg = f"the token processor could not continue this request{where}: {text}"
        self._release(slot, task, result)
        return result

    def _release(self, slot: int, task: Any, result: Any) -> None:
        """Free the slot and forget the request.  A failure is logged: the client is told anyhow."""
        name = task.request_id
        self.best_effort("recycling a request", self._recycle_resources, name, slot, task, result, False)
        self.forget(name, slot)

    def sweep(self) -> None:
        """Forget requests that are no longer known to FastDeploy, once there are many.

        Aborted requests leave their counters behind: what happens to them meanwhile is FastDeploy's business.
        """
        manager = self.resource_manager
        for table in map(self.__dict__.get, TABLES):
            if table is not None and len(table) > MOST_REQUESTS:
                known = {task.request_id for task in list(manager.tasks_list) if task is not None}
                known.update(getattr(manager, "requests", ()))
                for name in [name for name in list(table) if name not in known]:
                    table.pop(name, None)

    def forget(self, name: str, slot: int) -> None:
        """Drop what is kept about a request that has ended."""
        for table in TABLES:
            getattr(self, table, {}).pop(name, None)
        commons = self.__dict__.get("commons", ())  # of `steady`, once there was a step
        if slot < len(commons):
            commons[slot] = None
