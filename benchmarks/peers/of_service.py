"""FastDeploy's own service, without the plug-in and with it: what `harness.service` measures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from .environments import ROOT

KINDS = {"plain": None, "1 column": 0, "21 columns": 20}


def run(python: Path, streams: list[int], seconds: float, interval: float) -> Iterator[dict[str, Any]]:
    """Its rows; one that says why where there is no tree, or where a service fails."""
    tree = os.environ.get("FD_POSTPROC_FASTDEPLOY", "").partition(":")[0]
    if not tree:
        yield left_out("FastDeploy", "set FD_POSTPROC_FASTDEPLOY to a FastDeploy source tree")
        return
    for way, kind in product(("on", "off"), ("21 columns", "plain")):
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "streams.json")
            command = [str(python), "-m", "harness.service", "streams", "--tree", tree, "--json", str(told)]
            command += ["--streams", *map(str, streams), "--kind", kind, "--way", way]
            command += ["--interval", str(interval), "--seconds", str(seconds)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                yield left_out(
                    f"FastDeploy's service, {way}, {kind}",
                    done.stderr.strip().splitlines()[-1].partition(": see ")[0],
                )
            else:
                yield from map(row, json.loads(told.read_text()))


def left_out(name: str, reason: str) -> dict[str, Any]:
    """The row of a service that did not run."""
    return {"server": name, "streams": 0, "top": None, "left out": reason}


def row(one: dict[str, Any]) -> dict[str, Any]:
    """A row of ``harness.service streams`` as `servers.row` has it."""
    tokens = max(one["tokens a second"] * one["seconds"], 1)
    us = {name: one[f"{name} ms"] * one["steps"] * 1000 / tokens for name in ("API server", "engine")}
    whole = sum(us.values())
    return {
        "server": one["server"],
        "streams": one["requests"],
        "top": KINDS[one["kind"]],
        "interval": one["interval"],
        "us": us,
        "us in all": whole,
        "tokens a second": one["tokens a second"],
        "tokens a second and core": 1e6 / whole if whole else 0.0,
        "gap p50 ms": one.get("chunk p50 ms"),
        "gap p99 ms": one.get("chunk p99 ms"),
        "load average": one["load average"],
    }
