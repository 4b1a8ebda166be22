"""What clients get, and its cost: FastDeploy's server with one and four API processes, and with us."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from .measure import ACCEPTED, KINDS, Load, measure, settle
from .namespace import RAISED, Namespace
from .server import Service


class Server(NamedTuple):
    """A way to serve.

    Attributes
    ----------
    name : str
    plug_in : bool
    processes : int
        Of the API server (``--workers``).
    """

    name: str
    plug_in: bool
    processes: int


SERVERS = (
    Server("FastDeploy, 1 API process", False, 1),
    Server("FastDeploy, 4 API processes", False, 4),
    Server("fd_postproc, 1 API process", True, 1),
)


def run(
    tree: Path,
    folder: Path,
    *,
    streams: list[int],
    kinds: list[str],
    interval: float,
    seconds: float,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Measure everything: one server at a time, since an idle one polls, too."""
    rows = []
    for kind in kinds:
        for number, server in enumerate(SERVERS):
            with (
                Namespace(RAISED) as namespace,
                Service(
                    tree, folder / f"{kind.replace(' ', '')}-{number}", plug_in=server.plug_in,
                    channel=KINDS[kind][0], namespace=namespace, requests=max(streams),
                    workers=server.processes, environment={"FD_SERVICE_ACCEPT": str(ACCEPTED)},
                ) as service,
            ):  # fmt: skip
                service.wait(300)
                for count in streams:
                    with contextlib.suppress(TimeoutError):
                        row = measure(service, Load(count, kind, interval), seconds=seconds, least=0)
                        rows.append({"server": server.name, **row})
                        say(json.dumps(rows[-1]))
                    settle(service)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each load and server."""
    lines = [
        "| streams, columns | server | tokens a second | chunk to chunk, p50 | p99 |"
        " CPU a token: API server | engine | both | load average |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = [server.name for server in SERVERS]
    for row in sorted(rows, key=lambda row: (row["kind"], row["requests"], names.index(row["server"]))):
        tokens = row["tokens a second"] * row["seconds"]
        api, engine = (
            row[name] * row["steps"] * 1000 / max(tokens, 1) for name in ("API server ms", "engine ms")
        )
        cells = [
            f"{row['requests']}, {row['kind']}", row["server"], f"{row['tokens a second']:,.0f}",
            *(f"{row[name]:.0f} ms" if name in row else "-" for name in ("chunk p50 ms", "chunk p99 ms")),
            *(f"{value:.0f} us" for value in (api, engine, api + engine)), f"{row['load average']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
