"""A service whose functions somebody has wrapped, with the plug-in off and on: answers, and calls."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from fd_postproc.fastdeploy.gate.seams import PACKAGE, SEAMS

from . import cases
from .pairs import few
from .server import UNMENDED, running
from .tables import markdown, with_details

WAYS = ("wraps", "wrapt", "class", "patch")
"""How the functions are wrapped, as the shim's `wrapping` does it."""

_POLLED = "LocalScheduler.get_results"  # as often as the service is idle

ALL = "all"
"""Name of all seams at once."""


def functions_of(tree: Path, seam: str) -> list[str]:
    """FastDeploy's functions that a seam stands for or replaces in a tree, as ``module:Class.name``."""
    seams = SEAMS.values() if seam == ALL else [SEAMS[seam]]
    found = {}
    for one in seams:
        for text in (*one.functions, *(place for place in one.places if "." in place)):
            module, has_module, name = text.rpartition(":")
            for place in [PACKAGE + module] if has_module else one.modules:
                path = tree / (place.replace(".", "/") + ".py")
                if path.is_file():
                    found |= dict.fromkeys(f"{place}:{each}" for each in _spelled_out(path, name))
    return list(found)


def _spelled_out(path: Path, name: str) -> list[str]:
    """Each class's method for ``*.name``; the name itself otherwise."""
    owner, _, attribute = name.rpartition(".")
    if owner != "*":
        return [name]
    found, current = [], ""
    for line in path.read_text().splitlines():
        if match := re.match(r"class (\w+)", line):
            current = match[1]
        elif re.match(rf"    (async )?def {attribute}\(", line):
            found.append(f"{current}.{attribute}")
    return found


def compare(tree: Path, folder: Path, channel: str, how: str, seams: list[str]) -> list[dict[str, Any]]:
    """One row for each seam whose functions are wrapped: answers that differ, and calls that nobody names.

    All are compared with a service without the plug-in whose functions are all wrapped.
    """
    off = _run(tree, folder / "off", channel, how, functions_of(tree, ALL), plug_in=False)
    rows = []
    for seam in seams:
        wrapped = functions_of(tree, seam)
        on = _run(tree, folder / seam.replace(" ", "-"), channel, how, wrapped, plug_in=True)
        fewer = {one: (off["calls"][one], on["calls"][one]) for one in wrapped if _is_fewer(one, off, on)}
        rows.append(
            {
                "how": how, "seam": seam, "channel": channel, "wrapped": len(wrapped),
                "called": sum(1 for one in wrapped if on["calls"][one]),
                "fewer": fewer,
                "unnamed": [one for one in fewer if not _is_named(one, on["log"])],
                "gauges": on["gauges"],
                **cases.told_apart(off["got"], on["got"]),
            }
        )  # fmt: skip
    return rows


def _run(
    tree: Path, folder: Path, channel: str, how: str, wrapped: list[str], *, plug_in: bool
) -> dict[str, Any]:
    calls, plan = folder / "calls", folder / "plan.json"
    calls.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps({"how": how, "functions": wrapped, "calls": str(calls)}))
    wanted = few(channel)
    with running(
        tree, folder, plug_in=plug_in, channel=channel, requests=32,
        environment={**UNMENDED, "FD_SERVICE_WRAPPED": str(plan)},
    ) as service:  # fmt: skip
        before = _calls(calls, wrapped)
        got = cases.ask_both_ways(service, wanted)
        after = _calls(calls, wrapped)
        page = service.metrics()
    gauges = re.findall(r"fd_postproc_(?:active|known|fast_path)\{[^}]*\} 0\.0", page)
    return {
        "got": got, "log": service.log(), "gauges": sorted(set(gauges)),
        "calls": {one: after[one] - before[one] for one in wrapped},
    }  # fmt: skip


def _calls(folder: Path, wrapped: list[str]) -> dict[str, int]:
    """How often each function has been called, over all processes."""
    total = [0] * len(wrapped)
    for path in folder.iterdir():
        counts = struct.unpack(f"{len(wrapped)}Q", path.read_bytes())
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return dict(zip(wrapped, total, strict=True))


def _is_fewer(function: str, off: dict[str, Any], on: dict[str, Any]) -> bool:
    """Whether it is called less often, beyond what the clock decides: how many results a batch holds."""
    least = 1 if function.endswith(_POLLED) else off["calls"][function] / 2
    return on["calls"][function] < min(least, off["calls"][function])


def _is_named(function: str, log: str) -> bool:
    """Whether a line of the plug-in's names it."""
    name = function.partition(":")[2]
    return any("fd_postproc" in line and name in line for line in log.splitlines())


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `compare` for people."""
    heads = "how | channel | wrapped | >functions | >called | >fewer than off | >unnamed | >differ | >hang"
    counted = ("fewer", "unnamed", "differences", "hangs")
    lines = [
        [row[name] for name in ("how", "channel", "seam", "wrapped", "called")]
        + [len(row[name]) for name in counted]
        for row in rows
    ]
    unnamed = [
        f"{row['how']}, {row['seam']}: {one}: {row['fewer'][one]}, named nowhere"
        for row in rows
        for one in row["unnamed"]
    ]
    table = "\n".join([markdown(heads, lines), *unnamed])
    return with_details(table, ((f"{row['how']}, {row['seam']}", row) for row in rows))


def failed(rows: list[dict[str, Any]]) -> bool:
    """Whether an answer differs or hangs, or a wrapper is passed over without a word."""
    return any(row["differences"] or row["hangs"] or row["unnamed"] for row in rows)
