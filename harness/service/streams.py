"""What clients get, and its cost: FastDeploy's server with one and four API processes, and with us."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .measure import ACCEPTED, KINDS, WAYS, Load, measure, settle
from .server import running
from .tables import markdown


class Server(NamedTuple):
    """A way to serve.

    Attributes
    ----------
    name : str
    way : str
        Of `measure.WAYS`.
    processes : int
        Of the API server (``--workers``).
    interval : str
        ``FD_POSTPROC_STREAM_INTERVAL``.
    """

    name: str
    way: str
    processes: int
    interval: str = ""


SERVERS = (
    Server("FastDeploy, 1 API process", "off", 1),
    Server("FastDeploy, 4 API processes", "off", 4),
    Server("fd_postproc, 1 API process", "on", 1),
)


def run(
    tree: Path,
    folder: Path,
    *,
    streams: list[int],
    kinds: list[str],
    intervals: Sequence[float],
    seconds: float,
    ways: Sequence[str] = ("off", "on"),
    stream_intervals: Sequence[str] = (),
    say: Any = print,
) -> list[dict[str, Any]]:
    """Measure everything: one server at a time, since an idle one polls, too.

    With `stream_intervals` the servers are the plug-in's with one API process and each of these, and a step
    has one token of each request.  A server that is behind at an interval between steps, by `is_saturated`,
    is not asked for shorter ones.
    """
    rows = []
    servers = SERVERS
    if stream_intervals:
        servers = tuple(Server(f"interval {interval}", "on", 1, interval) for interval in stream_intervals)
    for kind in kinds:
        for number, server in enumerate(servers):
            if server.way not in ways:
                continue
            with running(
                tree, folder / f"{kind.replace(' ', '')}-{number}", plug_in=WAYS[server.way],
                channel=KINDS[kind][0], requests=max(streams), workers=server.processes,
                environment={
                    "FD_SERVICE_ACCEPT": str(1 if stream_intervals else ACCEPTED),
                    "FD_POSTPROC_STREAM_INTERVAL": server.interval,
                },
            ) as service:  # fmt: skip
                for count in streams:
                    for interval in sorted(intervals, reverse=True):
                        row = None
                        with contextlib.suppress(TimeoutError):
                            load = Load(count, kind, interval, counted=bool(stream_intervals))
                            row = measure(service, load, seconds=seconds, least=0)
                            rows.append({"server": server.name, **row})
                            say(json.dumps(rows[-1]))
                        settle(service)
                        if row is None or (is_saturated(row) and not stream_intervals):
                            break
    return rows


def is_saturated(row: dict[str, Any]) -> bool:
    """Whether one chunk of a hundred comes later than two intervals after the one before."""
    return bool(row.get("chunk p99 ms", 0.0) > 2000 * row["interval"])


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each load and server."""
    heads = (
        "streams, columns | >between steps | server | >tokens a second | >chunk to chunk, p50 | >p99 "
        "| >CPU a token: API server | >engine | >both | >load average"
    )
    names = list(dict.fromkeys([server.name for server in SERVERS] + [row["server"] for row in rows]))
    lines = []
    for row in sorted(
        rows, key=lambda row: (row["kind"], row["requests"], -row["interval"], names.index(row["server"]))
    ):
        tokens = row["tokens a second"] * row["seconds"]
        api, engine = (
            row[name] * row["steps"] * 1000 / max(tokens, 1) for name in ("API server ms", "engine ms")
        )
        lines.append(
            (
                f"{row['requests']}, {row['kind']}", f"{row['interval'] * 1000:.0f} ms", row["server"],
                f"{row['tokens a second']:,.0f}",
                *(f"{row[name]:.0f} ms" if name in row else "-" for name in ("chunk p50 ms", "chunk p99 ms")),
                *(f"{value:.0f} us" for value in (api, engine, api + engine)), f"{row['load average']:.0f}",
            )
        )  # fmt: skip
    return markdown(heads, lines)
