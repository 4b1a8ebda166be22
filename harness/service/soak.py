"""Hours of mixed traffic, to a service without the plug-in and to one with it: does anything grow?"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from .canary import Node
from .cases import Case, ask, cases, gauges_on, quiet
from .measure import WAYS
from .namespace import RAISED, Namespace
from .reading import memory, stalled
from .server import Service
from .tables import markdown
from .thinking import PARSERS, calls

WARM = 5
"""Minutes that are not looked at: caches fill, memory is asked for the first time."""
PACE = 0.05
"""Seconds between the worker's steps."""
AT_ONCE = 8
LIMITS = {"KiB": 1024.0, "files": 4.0, "entries": 1000.0}
"""Growth in an hour beyond FastDeploy's own that is a trend; in a shorter run, growth in all of it."""


def mixed() -> list[Case]:
    """The harness's cases, some of them of users whose names are long or odd: ids hold them."""
    names = ("x" * 900, "Zoë 你好/..%00", "a_0::n::1", "")
    return cases("spec_topk") + [
        Case(name, "chat", {"max_tokens": 24, "n": 2, "logprobs": True, "top_logprobs": 3, **stream})
        for name in names
        for stream in ({}, {"stream": True})
    ]


def run(tree: Path, folder: Path, *, hours: float, rest: float, say: Any = print) -> list[dict[str, Any]]:
    """A row a minute and service: memory and open files of each process, entries of the plug-in's tables.

    `rest`: seconds from `AT_ONCE` requests to the next.  Each minute the clients are killed and start anew.
    """
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        services = {}
        for way, plug_in in WAYS.items():
            (folder / way / "tables").mkdir(parents=True)
            services[way] = stack.enter_context(
                Service(
                    tree, folder / way, plug_in=plug_in, channel="spec_topk", requests=32,
                    parsers=PARSERS["ernie-x1 with tools"], says=calls(24),
                    namespace=stack.enter_context(Namespace(RAISED)),
                    environment={"FD_SERVICE_TABLES": str(folder / way / "tables")},
                )
            )  # fmt: skip
        for service in services.values():
            service.wait(300)
            service.pace(PACE)
        began = time.monotonic()
        for minute in range(1, round(60 * hours) + WARM + 1):
            clients = [
                context.Process(target=_traffic, args=(service.url, service.ports[0], minute, rest))
                for service in services.values()
            ]
            for client in clients:
                client.start()
            time.sleep(max(began + 60 * minute - time.monotonic(), 1))
            for client in clients:
                if client.exitcode is not None:
                    raise RuntimeError("a client has ended by itself: see above")
                client.kill()
                client.join()
            for way, service in services.items():
                rows.append({"way": way, "minute": minute, "load": os.getloadavg()[0], **_looks(service)})
                say(json.dumps(rows[-1]))
        for way, service in services.items():
            alarms = gauges_on(service.metrics(), "unhealthy", "fallbacks_total")
            rows.append({"way": way, "quiet": quiet(service), "alarms": sorted(alarms)})
            say(json.dumps(rows[-1]))
    return rows


def _traffic(url: str, port: int, seed: int, rest: float) -> None:
    """A client's process: it ends by being killed, with streams open."""
    chance, wanted = random.Random(seed), mixed()
    with stalled(port, 600):
        while True:
            ask(Node(url), chance.sample(wanted, AT_ONCE), side_by_side=AT_ONCE)
            time.sleep(rest)


def _looks(service: Service) -> dict[str, Any]:
    roles = {service.process.pid: "engine", **dict.fromkeys(service.workers(), "worker")}
    roles |= dict.fromkeys(service.api_servers(), "API server")
    found: dict[str, Any] = {"KiB": {}, "files": {}, "entries": {}}
    others = itertools.count(1)
    for pid in service.processes():
        role = roles.get(pid) or f"other {next(others)}"
        with contextlib.suppress(OSError, IndexError):  # it has ended, or is about to
            found["KiB"][role] = memory(pid) // 1024
            found["files"][role] = len(os.listdir(f"/proc/{pid}/fd"))
        with contextlib.suppress(FileNotFoundError):
            tables = json.loads((service.folder / "tables" / str(pid)).read_text())
            found["entries"] |= {f"{role}: {name}": size for name, size in tables.items()}
    return found


def growth(rows: list[dict[str, Any]], way: str, what: str, of: str) -> float:
    """By how much a number grows in an hour: the median slope of all pairs of minutes (Theil and Sen)."""
    seen = [
        (row["minute"], row[what].get(of, 0))
        for row in rows
        if row["way"] == way and row.get("minute", 0) > WARM
    ]
    return 60 * statistics.median((y - b) / (x - a) for (a, b), (x, y) in itertools.combinations(seen, 2))


def trends(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, float, bool]]:
    """What is counted, of whom, its growth in an hour: FastDeploy's, the plug-in's; whether it is a trend."""
    hours = (max(row.get("minute", 0) for row in rows) - WARM) / 60
    found = []
    for what, limit in LIMITS.items():
        for of in sorted({name for row in rows for name in row.get(what, ())}):
            off, on = (growth(rows, way, what, of) for way in WAYS)
            found.append((what, of, off, on, on - max(off, 0) > limit / min(hours, 1)))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each number; of the plug-in's tables only those that grow or shrink."""
    lines = [
        (f"{what}, {of}", f"{off:+.0f}", f"{on:+.0f}", "TREND" * grows)
        for what, of, off, on, grows in trends(rows)
        if what != "entries" or on
    ]
    return markdown("in an hour | >FastDeploy | >fd_postproc |", lines)


def failed(rows: list[dict[str, Any]]) -> int:
    """1 if something grows, or in the end a request is left, or the plug-in has an alarm."""
    ends = [row for row in rows if "quiet" in row]
    wrong = any(row["alarms"] or not row["quiet"] for row in ends if row["way"] == "on")
    return int(wrong or any(grows for *_, grows in trends(rows)))
