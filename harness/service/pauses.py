"""What must end no request: an engine or an API process that stops for a while, a busy machine, a restore."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx

from .cases import Case, ask, differences, gauges_on, quiet, until
from .reading import busiest
from .server import Service, running

BUSY = 20
"""Processes that do nothing but compute, on however many processors there are."""
PACE = 0.15
"""Seconds between the worker's steps: an answer takes longer than any pause."""
LIMIT_S = 180.0
"""Seconds for which a client waits for its next chunk: longer than any pause and its end."""
RESTORE_S = 6.0
"""Seconds from a restore to the next."""
_TOKENS = {"max_tokens": 600, "extra_body": {"min_tokens": 599}}


def _wanted(streams: int, answers: int = 2) -> list[Case]:
    """Streams, and answers that are not streamed, which wait without an event from the start."""
    return [
        Case(
            f"{'stream' if n < streams else 'whole'}{n}",
            "chat",
            {**_TOKENS, "stream": n < streams},
            f"tell {n}",
        )
        for n in range(streams + answers)
    ]


@contextlib.contextmanager
def load(processes: int = BUSY) -> Iterator[None]:
    """Processes that compute, until the end of the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """``SIGSTOP`` to a process, until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _load(service: Service) -> contextlib.AbstractContextManager[None]:
    return load()


def _engine(service: Service) -> contextlib.AbstractContextManager[None]:
    return _stopped(service.process.pid)


@contextlib.contextmanager
def _api_process(service: Service) -> Iterator[None]:
    with load(), _stopped(busiest(service)[0]):
        yield


@contextlib.contextmanager
def _restores(service: Service) -> Iterator[None]:
    """Restored snapshots, one after the other."""
    for _ in range(3):
        service.restore()
        time.sleep(RESTORE_S)
    yield


ROWS: dict[str, tuple[Callable[[Service], contextlib.AbstractContextManager[None]], float, bool]] = {
    "SIGSTOP of the engine, 60 s": (_engine, 60.0, False),
    "SIGSTOP of the engine, 60 s, before requests come": (_engine, 60.0, True),
    "load 20, 60 s": (_load, 60.0, False),
    "SIGSTOP of one of four API processes, 20 s, with load 20": (_api_process, 20.0, False),
    "three restored snapshots": (_restores, 5.0, False),
}
"""What disturbs the service, for how long, and whether it begins before the clients ask."""


def run(
    tree: Path, folder: Path, *, plug_in: bool, only: Collection[str] = ROWS
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of `ROWS` in one service of four API processes, and what clients got.

    Yields
    ------
    str, dict
        ``"ended"``: answers that ended during the disturbance; ``"differences"`` from what they are without;
        ``"hang"``: how many got nothing for `LIMIT_S`; ``"alarms"``: gauges of health set during it, and when
        it was over; ``"quiet"``: whether nothing runs in the end; ``"log"``: lines on health.
    """
    wanted = _wanted(streams=6)
    with (
        running(tree, folder, plug_in=plug_in, requests=32, workers=4) as service,
        concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool,
    ):
        right = ask(service, wanted, side_by_side=len(wanted))
        said = 0
        for what in only:
            made = _row(service, pool, wanted, *ROWS[what])
            got = made.pop("got")
            lines = [line[-160:] for line in service.log().splitlines() if "fd_postproc: unhealthy" in line]
            yield what, {**made, "differences": differences(right, got, crowd=True), "log": lines[said:]}
            said = len(lines)


def _row(
    service: Service,
    pool: concurrent.futures.Executor,
    wanted: list[Case],
    disturbance: Callable[[Service], contextlib.AbstractContextManager[None]],
    seconds: float,
    before: bool,
) -> dict[str, Any]:
    def begin() -> list[concurrent.futures.Future[dict[str, Any]]]:
        return [pool.submit(ask, service, [case], seconds=LIMIT_S) for case in wanted]

    service.pace(PACE)
    asked = [] if before else begin()
    if not until(lambda: before or service.live() == len(wanted), 60):
        raise TimeoutError("the requests do not begin")
    time.sleep(2)
    with disturbance(service):
        asked = asked or begin()
        during = _alarms(service, seconds)
        ended = sum(one.done() for one in asked)
    service.pace(0.0)
    afterwards = _alarms(service, 5)
    got: dict[str, Any] = {}
    for one in asked:
        got.update(one.result())
    return {
        "ended": ended, "hang": sum(one[-1] == "hangs" for one in got.values()),
        "alarms": [during, afterwards], "quiet": quiet(service), "got": got,
    }  # fmt: skip


def _alarms(service: Service, seconds: float) -> list[str]:
    """Gauges of health that are set within the next seconds; an engine that is stopped has no page."""
    found, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            found |= gauges_on(service.metrics(), "unhealthy", "busy")
        time.sleep(min(0.5, max(end - time.monotonic(), 0)))
    return sorted(found)
