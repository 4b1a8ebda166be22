"""Requests of a decode node that wait for their first token, and a prefill node that is dead."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from ...logs import export_number

GRACE_S = 2.0
"""Seconds for which a request waits before its prefill node is asked, and between two answers that count."""
REFUSALS = 3
"""Refused connections in a row that make a prefill node dead: one that restarts refuses, too."""
ASK_S = 0.5
BAD_GATEWAY = 502  # FastDeploy's own code for a request that prefill and decode node could not finish

Address = tuple[str, int]


def refuses(address: Address) -> bool:
    """Whether nobody listens there; an unreachable host or a full backlog is no proof."""
    try:
        socket.create_connection(address, timeout=ASK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


class FirstTokens:
    """Counts requests that wait for a prefill node, and ends those of a dead one.

    FastDeploy's decode node reserves a slot and blocks, and waits without limit for the prefill node to
    send the first token.  While requests wait, the address of the prefill node's connector is asked: a
    dead engine's refuses.
    """

    def __init__(self, asked: Callable[[Address], bool] = refuses) -> None:
        self._asked = asked
        self._since: dict[str, float] = {}
        self._ran: set[str] = set()  # known to the scheduler; they had a token, or were ended
        self._refusals: dict[Address, int] = {}
        self._due: dict[Address, float] = {}

    def look(self, processor: Any, now: float | None = None) -> None:
        """Count what waits, and end what waits for a dead prefill node."""
        if processor.cfg.scheduler_config.splitwise_role != "decode":
            return
        now = time.monotonic() if now is None else now
        waiting = self._waiting(processor)
        self._since = {name: self._since.get(name, now) for name in waiting}
        export_number("waiting_first_tokens", len(waiting))
        late = {name: at for name, at in waiting.items() if now - self._since[name] >= GRACE_S}
        for address in self._refusals.keys() - set(late.values()):
            del self._refusals[address]
        for address in sorted(set(late.values())):
            if now < self._due.get(address, 0.0):
                continue
            self._due[address] = now + GRACE_S
            self._refusals[address] = self._refusals.get(address, 0) + 1 if self._asked(address) else 0
            if self._refusals[address] >= REFUSALS:
                self._end(processor, address, [name for name, at in late.items() if at == address])

    def _waiting(self, processor: Any) -> dict[str, Address]:
        """Each waiting request's prefill node: of those with a slot, and of those that never got one."""
        manager, scheduler = processor.resource_manager, processor.cached_generated_tokens
        reserved = dict(getattr(manager, "requests", {}))
        found = {}
        for name, request in reserved.items():
            if manager.tasks_list[request.idx] is None:
                found[name] = _address_of(request)
            else:
                self._ran.add(name)
        asked = dict(getattr(scheduler, "requests", {}))
        self._ran &= asked.keys()
        for name, entry in asked.items():
            if name not in reserved and name not in self._ran:
                found[name] = _address_of(getattr(entry, "raw", None))
        return {name: address for name, address in found.items() if address is not None}

    def _end(self, processor: Any, address: Address, names: list[str]) -> None:
        """End requests by FastDeploy's own means for a prefill node that fails."""
        manager, results = processor.resource_manager, []
        host, port = address
        text = (
            f"PD Error: the engine of the prefill node {host}:{port} is gone, and this request's first token "
            "with it; ask again"
        )
        for name in names:
            if name in manager.requests:
                if manager.tasks_list[manager.requests[name].idx] is not None:
                    continue  # its first token has just come
                manager.pre_recycle_resource(name)
                reserved = getattr(processor.fd.main_process_metrics, "decode_preallocated_req_num", None)
                if reserved is not None:  # FastDeploy's own gauge, in newer versions
                    reserved.dec()
            processor.tokens_counter.pop(name, None)
            self._ran.add(name)
            results.append(
                processor.fd.RequestOutput(
                    request_id=name, finished=True, error_code=BAD_GATEWAY, error_msg=text
                )
            )
        if results:
            processor.counters.failed_requests += len(results)
            processor.fd.llm_logger.error(
                f"fd_postproc: {len(results)} requests end with an error: nobody listens at {host}:{port}, "
                f"the connector of their prefill node: {', '.join(one.request_id for one in results)}"
            )
            processor.cached_generated_tokens.put_results(results)


def _address_of(request: Any) -> Address | None:
    """Where the prefill node's connector listens."""
    info = getattr(request, "disaggregate_info", None) or {}
    try:
        return str(info["prefill_ip"]), int(info["prefill_connector_port"])
    except (KeyError, TypeError, ValueError):
        return None
