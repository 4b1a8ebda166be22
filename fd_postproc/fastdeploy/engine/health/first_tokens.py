"""Requests of a decode node that wait for their first token, and a prefill node that is dead."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterable
from typing import Any

from ....support.environment import UNREACHABLE
from ...events.gauges import export
from .scheduler_requests import fail

GRACE_S = 2.0
"""Seconds for which a request waits before it can be ended."""
GONE_S = 4.0
"""Seconds without a connection that make a prefill node dead, after one that was closed or refused."""
GREET_S = 30.0
"""Seconds within which a prefill node greets who connects: libzmq's own limit."""
RENEW_S = 5.0
"""Seconds after which a connection is made anew: children that an engine forks hold the ones it has then."""
FORGET_S = 600.0
"""Seconds after which a prefill node that no request names is no longer watched."""
MOST_NODES = 128
"""Prefill nodes that are watched at once: a client may name any, and each takes sockets."""
LONGEST_HOST = 253
"""Characters of a host's name, by DNS."""
BAD_GATEWAY = 502  # FastDeploy's own code for a request that prefill and decode node could not finish

Address = tuple[str, int]


class Connection:
    """Connection to a prefill node's connector, which the kernel closes when the engine dies.

    A closed socket is not to be waited for: API processes inherit the engine's listening socket, and
    outlive it.  The kernel accepts connections there, and none greets; in an engine that is alive a thread
    of libzmq does, however busy it is.  A stopped engine keeps its connections.  So does a host that has
    vanished, for ever or for `limit` seconds.
    """

    def __init__(self, context: Any, address: Address, limit: float = math.inf) -> None:
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        self._address, self._next_event = address, recv_monitor_message
        self._up, self._reached = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_CONNECTED
        self._ungreeted, self._closed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 500)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * GREET_S))
        if limit < math.inf:
            self._ask_kernel(zmq, limit)
        self._events = self._socket.get_monitor_socket(
            self._up | self._reached | self._ungreeted | self._closed
        )
        with contextlib.suppress(zmq.ZMQError):  # a client's text that is no address: nothing is reached
            self._socket.connect(f"tcp://{address[0]}:{address[1]}")
        self.is_up = self._was_reached = False
        self._was_closed = False  # after it was up, or since no process greets
        self._limit = limit
        self._began: float | None = None  # when it was looked at first
        self._since: float | None = None  # when it was closed or refused first
        self.next: Connection | None = None  # which takes its place once it is up
        self.named = 0.0  # when a request named it last

    def _ask_kernel(self, zmq: Any, limit: float) -> None:
        """Have the kernel close the connection to a silent host; that of a stopped process answers."""
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, max(int(limit / 2), 1))
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, max(int(limit / 4), 1))
        self._socket.setsockopt(zmq.TCP_MAXRT, int(1000 * limit))

    def is_dead(self, now: float) -> bool:
        """Whether the engine is dead for certain, or its host silent for longer than the limit."""
        while self._events.poll(0):
            self._note(self._next_event(self._events)["event"])
        if self._began is None:
            self._began = now
        if not self._was_reached and now - self._began >= self._limit:
            return True
        if self.is_up or not (self._was_closed or refuses(self._address)):
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= GONE_S

    def _note(self, event: int) -> None:
        if event == self._up:
            self._was_closed = False
        elif event == self._ungreeted or (event == self._closed and self.is_up):
            self._was_closed = True
        if event != self._reached:
            self.is_up = event == self._up
        self._was_reached = True

    def age(self, now: float) -> float:
        """Seconds since it was looked at first."""
        return 0.0 if self._began is None else now - self._began

    def close(self) -> None:
        """Close it."""
        if self.next is not None:
            self.next.close()
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close()


def refuses(address: Address) -> bool:
    """Whether no process listens there; an unreachable host or a full backlog is no proof."""
    try:
        socket.create_connection(address, timeout=0.5).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):  # the latter: it is no address
        return False
    return False


class PrefillNodes:
    """The prefill nodes that requests name, each with a connection; see `Connection` for `limit`."""

    def __init__(self, limit: float = math.inf) -> None:
        self._context: Any = None
        self._connections: dict[Address, Connection] = {}
        self._limit = limit

    def dead(self, named: Iterable[Address], now: float) -> set[Address]:
        """The dead nodes; `named` are those that living requests name."""
        for address in sorted(named, key=lambda one: one not in self._connections):
            if address not in self._connections:
                if len(self._connections) >= MOST_NODES and not self._make_room(now):
                    break
                self._connections[address] = self._connect(address)
            self._connections[address].named = now
        for address, one in list(self._connections.items()):
            if now - one.named > FORGET_S:
                self._connections.pop(address).close()
            else:
                self._connections[address] = self._renewed(one, address, now)
        return {address for address, one in self._connections.items() if one.is_dead(now)}

    def _make_room(self, now: float) -> bool:
        """Forget the node that no request has named for longest, if there is one."""
        address = min(self._connections, key=lambda one: self._connections[one].named)
        if self._connections[address].named >= now:
            return False
        self._connections.pop(address).close()
        return True

    def _connect(self, address: Address) -> Connection:
        import zmq

        self._context = self._context or zmq.Context()
        return Connection(self._context, address, self._limit)

    def _renewed(self, one: Connection, address: Address, now: float) -> Connection:
        """The connection, or its successor once that is up.

        An engine forks its API processes when its connector listens already.  They hold the connections of
        that time open when it dies; later ones they do not have.
        """
        if one.next is None:
            if one.is_up and one.age(now) >= RENEW_S:
                one.next = self._connect(address)
            return one
        one.next.is_dead(now)
        if not one.next.is_up:
            return one
        successor, one.next = one.next, None
        successor.named = one.named
        one.close()
        return successor

    def close(self) -> None:
        """Close all connections."""
        for one in self._connections.values():
            one.close()
        self._connections.clear()
        if self._context is not None:
            self._context.term()
            self._context = None


class FirstTokens:
    """Counts requests that wait for a prefill node, and ends those of a dead one.

    FastDeploy's decode node reserves a slot and blocks, and waits without limit for the prefill node to
    send the first token.
    """

    def __init__(self, nodes: Any = None) -> None:
        self._nodes = nodes
        self._since: dict[str, float] = {}
        self._ran: set[str] = set()  # known to the scheduler; they had a token, or were ended
        self._reserved: set[str] = set()  # had a slot when they were looked at last

    def look(self, processor: Any, now: float | None = None) -> None:
        """Count what waits, and end what waits for a dead prefill node."""
        if processor.cfg.scheduler_config.splitwise_role != "decode":
            return
        if self._nodes is None:
            self._nodes = PrefillNodes(UNREACHABLE.valid(processor.fd.llm_logger.error))
        now = time.monotonic() if now is None else now
        waiting = self._waiting(processor)
        self._since = {name: self._since.get(name, now) for name in waiting}
        export("waiting_first_tokens", "side", "engine", len(waiting))
        running = dict(getattr(processor.resource_manager, "requests", {})).values()
        named = {*waiting.values(), *filter(None, map(_address_of, running))}
        for address in sorted(self._nodes.dead(named, now)):
            late = [
                name for name, at in waiting.items() if at == address and now - self._since[name] >= GRACE_S
            ]
            if late:
                self._end(processor, address, late)

    def close(self) -> None:
        """Close the connections."""
        if self._nodes is not None:
            self._nodes.close()

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
        # One whose transfer fails leaves its slot; FastDeploy's scheduler knows it for ever.
        self._ran |= self._reserved - reserved.keys()
        self._reserved = set(reserved)
        asked = dict(getattr(scheduler, "requests", {}))
        self._ran &= asked.keys()
        for name, entry in asked.items():
            if name not in reserved and name not in self._ran:
                found[name] = _address_of(getattr(entry, "raw", None))
        return {name: address for name, address in found.items() if address is not None}

    def _end(self, processor: Any, address: Address, names: list[str]) -> None:
        """End requests by FastDeploy's own means for a prefill node that fails."""
        manager, ended = processor.resource_manager, []
        host, port = address
        text = (
            f"PD Error: the prefill node {host}:{port} is dead or unreachable, and this request's first "
            "token with it; ask again"
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
            ended.append(name)
        fail(processor, ended, BAD_GATEWAY, text)


def _address_of(request: Any) -> Address | None:
    """Where the prefill node's connector listens."""
    info = getattr(request, "disaggregate_info", None) or {}
    try:
        host, port = str(info["prefill_ip"]), int(info["prefill_connector_port"])
    except (KeyError, TypeError, ValueError):
        return None
    return (host, port) if len(host) <= LONGEST_HOST else None
