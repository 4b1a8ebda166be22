"""How a service ends, and what the gauges and ``fd-postproc explain`` say of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx

from .cases import ask, gauges_on, until
from .faults import simple
from .server import Service, running

LIMIT_S = 60.0
"""Seconds within which an engine ends."""


def _kill_idle_worker(service: Service) -> None:
    service.kill(service.workers()[0])


def _stop(service: Service) -> None:
    os.kill(service.process.pid, signal.SIGTERM)


def _stop_all(service: Service) -> None:
    for pid in service.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


ROWS: dict[str, tuple[bool, bool, Callable[[Service], None], set[str]]] = {
    "idle worker killed": (True, False, _kill_idle_worker, {"worker"}),
    "idle worker killed before the first step": (False, False, _kill_idle_worker, {"worker"}),
    "stop": (True, False, _stop, set()),
    "stop of all processes at once": (True, False, _stop_all, set()),
    "exit that hangs": (True, True, _stop, {"engine"}),
}
"""By name: whether clients ask before, and the exit hangs; what is done; findings that `explain` has."""


def run(
    tree: Path, folder: Path, *, plug_in: bool, only: Collection[str] = ROWS
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of `ROWS`, each in a service of its own; there is nothing to say without the plug-in.

    Yields
    ------
    str, dict
        ``"gauges"`` of health that were set; ``"active"``: whether the engine's was 0; ``"found"``: codes of
        findings, with severities; ``"quiet"``: whether they are those of the row, and no other error.
    """
    for number, what in enumerate(only if plug_in else ()):
        asks, hangs, *_ = ROWS[what]
        place = folder / str(number)
        more = {"FD_POSTPROC_FLIGHT_FOLDER": str(place / "flights")}
        more |= {"FD_SERVICE_EXIT_HANGS": "1"} if hangs else {}
        with running(tree, place, plug_in=True, requests=32, environment=more) as service:
            if asks:
                ask(service, simple("plain"))
            time.sleep(3)
            yield what, _row(service, more, what)


def _row(service: Service, more: dict[str, str], what: str) -> dict[str, Any]:
    _, hangs, end, right = ROWS[what]
    seen: set[str] = set()
    inactive = False
    end(service)

    def over() -> bool:
        nonlocal inactive
        with contextlib.suppress(httpx.HTTPError):
            page = service.metrics()
            seen.update(gauges_on(page, "unhealthy", "busy"))
            inactive |= 'fd_postproc_active{side="engine"} 0' in page
        return service.process.poll() is not None or (hangs and bool(seen))

    ended = until(over, LIMIT_S)
    command = [sys.executable, "-m", "fd_postproc", "explain", str(service.process.pid), "--json"]
    told = json.loads(subprocess.run(command, env=os.environ | more, capture_output=True).stdout)
    found = {one["code"]: one["severity"] for one in told["findings"]}
    errors = {code for code, severity in found.items() if severity == "error"}
    is_right = errors <= right <= set(found) and told["alive"] == hangs and bool(told["exit_began"])
    return {
        "gauges": sorted(seen), "inactive": inactive, "found": found, "exit_began": told["exit_began"],
        "hang": not ended, "quiet": is_right,
    }  # fmt: skip
