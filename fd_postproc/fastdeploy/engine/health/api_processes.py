"""The engine notices an API process that is gone, and ends requests without a reader.

FastDeploy's engine goes on with the requests of an API process that was killed, up to their last token, and
keeps their results in a socket without a limit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from ....support.process_stat import KnownProcess, listens

LOOK_S = 1.0  # between two looks
GONE_S = 3.0  # after which a process that is gone counts as gone
IPC = "ipc://"


class ApiProcesses:
    """The API processes that get results; `look` runs in the engine's thread that sends them.

    A process is gone if it was seen alive in ``/proc`` and no longer is, or if it was never seen and none
    listens at its socket: one in another PID namespace does.

    Attributes
    ----------
    requests : int
        Requests whose API process was gone.
    gone : set of int
        Processes to which nothing is sent.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = 0
        self.gone: set[int] = set()
        self._clock, self._due = clock, 0.0
        self._known: dict[int, KnownProcess] = {}
        self._addresses: dict[int, str] = {}
        self._missing: dict[int, float] = {}  # since when
        self._names: dict[int, set[str]] = {}  # requests of a process, when it was last seen alive
        self._counted: set[str] = set()  # requests whose process is gone
        self._absent: set[str] = set()  # of these: those that the engine did not have at the last look

    def look(self, engine: Any, envs: Any) -> None:
        """Look at each process that gets results, once in `LOOK_S`; never raises.

        `envs` is ``fastdeploy.envs``.
        """
        now = self._clock()
        if now < self._due:
            return
        self._due = now + LOOK_S
        try:
            self._look(engine, envs, now)
        except Exception as error:
            engine.llm_logger.error(f"fd_postproc: the look at the API processes failed: {error!r}")

    def _look(self, engine: Any, envs: Any, now: float) -> None:
        addresses = dict(getattr(engine.send_response_server, "worker_push_addresses", ()))
        self._addresses.update(addresses)
        names: dict[int, set[str]] = {pid: set() for pid in addresses if isinstance(pid, int)}
        for name, pid in dict(engine.request_worker_map).items():
            if isinstance(pid, int):
                names.setdefault(pid, set()).add(name)
        for pid in self._addresses.keys() | self._known.keys():
            if pid not in names:  # it gets nothing any more, or its number is free
                self._forget(pid)
        self._counted &= set().union(*names.values())
        absent: set[str] = set()
        for pid, requests in names.items():
            if self._is_alive(pid):
                self._missing.pop(pid, None)
                self._names[pid] = requests
            elif now - self._missing.setdefault(pid, now) >= GONE_S:
                absent |= self._end(engine, envs, pid, requests)
        self._absent = absent

    def _forget(self, pid: int) -> None:
        tables: tuple[dict[int, Any], ...] = (self._known, self._addresses, self._missing, self._names)
        for table in tables:
            table.pop(pid, None)
        self.gone.discard(pid)

    def _is_alive(self, pid: int) -> bool:
        known = self._known.get(pid)
        if known is not None:
            return known.is_alive()
        present = _process(pid)
        if present is not None:
            self._known[pid] = present
            return True
        return pid not in self._addresses or _listens(self._addresses[pid])

    def _end(self, engine: Any, envs: Any, pid: int, requests: set[str]) -> set[str]:
        """End the requests of a process that is gone; return those that the engine does not have."""
        present = _process(pid)
        if present is not None and _listens(self._addresses.get(pid, "")):  # an API process with its number
            requests = requests & self._names.get(pid, set())
            self._forget(pid)
            self._known[pid] = present
        else:
            self.gone.add(pid)
            _close(engine.send_response_server, pid, self._addresses.get(pid))
        manager = engine.resource_manager
        running = {*dict(manager.requests), *dict(engine.scheduler.requests)}
        stops = envs.FD_ENABLE_REQUEST_DISCONNECT_STOP_INFERENCE and envs.ENABLE_V1_KVCACHE_SCHEDULER
        ended = sorted((requests & running) - self._counted)
        if ended:
            if stops:
                manager.add_abort_req_ids(ended)
            self._counted.update(ended)
            self.requests += len(ended)
            engine.llm_logger.error(
                f"fd_postproc: API process {pid} is gone, with {len(ended)} requests that nobody reads: they "
                + ("are aborted" if stops else "run on, as FD_ENABLE_REQUEST_DISCONNECT_STOP_INFERENCE says")
            )
        absent = requests - running
        for name in absent & self._absent:  # FastDeploy keeps names of requests that were aborted
            engine.request_worker_map.pop(name, None)
        return absent


def _process(pid: int) -> KnownProcess | None:
    """The process that has a number now, if one is seen alive."""
    try:
        present = KnownProcess.of(pid)
    except (OSError, IndexError):
        return None
    return present if present.is_alive() else None


def _listens(address: str) -> bool:
    """Whether a process listens at a socket's address."""
    return address.startswith(IPC) and listens(address.removeprefix(IPC))


def _close(server: Any, pid: int, address: str | None) -> None:
    """Close the socket to a process that is gone, with what waits in it, and remove that one's file.

    FastDeploy's other threads send under the second lock, after they have found the socket under the first.
    """
    with server.worker_push_lock:
        push = server.worker_push_sockets.pop(pid, None)
        server.worker_push_addresses.pop(pid, None)
    if push is not None:
        with server.response_token_lock:
            push.close(linger=0)
    if address is not None and not _listens(address):
        with contextlib.suppress(OSError):
            os.unlink(address.removeprefix(IPC))
