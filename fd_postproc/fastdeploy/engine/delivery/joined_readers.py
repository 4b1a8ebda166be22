"""The API processes that take results which a stream interval has joined.

FastDeploy's parsers were written for one token a result.  So results are joined only for a process that has
said that it takes them apart again (`array_readers.JOINED`).
"""

from __future__ import annotations

from typing import Any

from ....support.environment import API, STREAM_INTERVAL
from ...array_readers import JOINED, has_announced

PERIOD_S = 1.0
"""Seconds after which the processes are asked again: one may have fallen back to FastDeploy's own code."""

WHY_NOT = f"{API}=0, FD_USE_HF_TOKENIZER=1, no plug-in there, or code that it does not know"


class JoinedReaders:
    """The processes of an engine's API server that have said so, asked when one is new, and now and then."""

    def __init__(self) -> None:
        self._readers: frozenset[int] = frozenset()
        self._asked: dict[int, bool] = {}
        self._next = 0.0

    def of(self, engine: Any, now: float) -> frozenset[int]:
        """The processes; `now` is the monotonic time."""
        addresses = getattr(engine.send_response_server, "worker_push_addresses", None) or {}
        if now >= self._next or addresses.keys() != self._asked.keys():
            self._next = now + PERIOD_S
            announced = {process: has_announced(address, JOINED) for process, address in [*addresses.items()]}
            for process, takes in announced.items():
                if self._asked.get(process) != takes:
                    self._tell(engine.llm_logger, process, takes)
            self._asked = announced
            self._readers = frozenset(process for process, takes in announced.items() if takes)
        return self._readers

    def _tell(self, log: Any, process: int, takes: bool) -> None:
        if takes:
            log.info(f"fd_postproc: results for API process {process} are joined, as {STREAM_INTERVAL} says")
            return
        log.warning(
            f"fd_postproc: {STREAM_INTERVAL} has no effect for API process {process}, which has not said "
            f"that it takes joined results ({WHY_NOT}: its log names the reason)"
        )
