"""Two data parallel ranks, each with API processes of its own, asked at once, with the plug-in off and on."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

from fd_postproc.queues import CHANNEL_PATHS, key_text, locate

from . import cases
from .namespace import Namespace
from .pairs import few
from .server import UNMENDED, Service, running
from .tables import markdown, with_details

RANKS = 2


def compare(
    tree: Path, folder: Path, channel: str, *, workers: int = 2, every_case: bool = False
) -> list[dict[str, Any]]:
    """One row for each rank, with the plug-in off and on: cases, hangs, differences, queue and metrics."""
    wanted = cases.cases(channel) if every_case else few(channel)[-8:]
    rows, first = [], None
    for plug_in in False, True:
        place = folder / ("on" if plug_in else "off")
        with running(
            tree, place, seconds=600, plug_in=plug_in, channel=channel, requests=32, ranks=RANKS,
            workers=workers, environment=UNMENDED,
        ) as service:  # fmt: skip
            found = asked(service, wanted)
            queues = channel_keys(service, service.namespace, channel)
            pages = [service.rank(rank).metrics() for rank in range(RANKS)]
        first = first or found
        (place / "answers.json").write_text(json.dumps(found, indent=1))
        for rank, got in enumerate(found):
            rows.append(
                {
                    "channel": channel, "plug-in": "on" if plug_in else "off", "rank": rank,
                    "cases": 2 * len(wanted), "queue": queues[rank],
                    **cases.told_apart(first[rank], got, crowd=True),
                    "active": [line for line in pages[rank].splitlines() if "fd_postproc_active{" in line],
                }
            )  # fmt: skip
    return rows


def asked(service: Service, wanted: list[cases.Case]) -> list[dict[str, Any]]:
    """What each rank's clients get, all ranks at once: a case at a time, and eight."""
    ranks = [service.rank(rank) for rank in range(service.ranks)]
    with concurrent.futures.ThreadPoolExecutor(service.ranks) as pool:
        return list(pool.map(lambda rank: cases.ask_both_ways(rank, wanted), ranks))


def channel_keys(service: Service, namespace: Namespace, channel: str) -> list[str]:
    """Each rank's queue: its key, and the bytes that wait in it."""
    path = str(service.folder) if CHANNEL_PATHS[channel] == "./" else None
    ids = [service.port("tasks", rank) for rank in range(service.ranks)]
    keys, there = [locate(channel, one, path=path) for one in ids], namespace.queues()
    return [f"{key_text(key)} {there[key][0] if key in there else 'none'}" for key in keys]


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `compare` for people."""
    heads = "channel | plug-in | >rank | >cases | >differ | >hang | queue, bytes in it | on its metrics page"
    lines = [
        (
            row["channel"], row["plug-in"], row["rank"], row["cases"], len(row["differences"]),
            len(row["hangs"]), row["queue"], "; ".join(row["active"]),
        )
        for row in rows
    ]  # fmt: skip
    return with_details(markdown(heads, lines), ((f"rank {row['rank']}", row) for row in rows))


def failed(rows: list[dict[str, Any]]) -> bool:
    """Whether an answer differs or hangs, or two ranks share a queue."""
    shared = any(
        len({row["queue"].split()[0] for row in rows if row["plug-in"] == how}) < RANKS
        for how in ("off", "on")
    )
    return shared or any(row["differences"] or row["hangs"] for row in rows)
