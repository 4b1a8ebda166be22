"""Ordinary traffic for as long as asked, and each finding of `fd-postproc explain` on the way.

Nothing is broken here: a finding that names a fault is a false one, or a fault of the machine.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from .namespace import RAISED, Namespace
from .server import Service

LOOK_S = 15.0
"""Seconds between two looks."""

LONGEST_PAUSE_S = 30.0
"""Of the service, while no client asks."""

STEP_S = 0.04
"""Between two steps of the worker."""


def run(tree: Path, folder: Path, *, minutes: float, channel: str = "topk", seed: int = 1) -> dict[str, Any]:
    """Serve, ask and look.

    Returns
    -------
    dict
        ``"minutes"``; ``"requests"`` and ``"tokens"`` that clients got; ``"hung_up"``: those that left;
        ``"looks"``; ``"load average"`` (lowest, highest); ``"findings"``: each once, by time and code;
        ``"unhealthy"``: reasons that a gauge gave.
    """
    with (
        Namespace(RAISED) as namespace,
        Service(tree, folder, plug_in=True, channel=channel, namespace=namespace, requests=64) as service,
        concurrent.futures.ThreadPoolExecutor(64) as pool,
    ):
        service.wait(300)
        service.pace(STEP_S)
        began = time.monotonic()
        traffic = _Traffic(service, random.Random(seed), channel.endswith("topk"))
        asking = pool.submit(traffic.ask, pool, began + 60 * minutes)
        found: dict[tuple[float, str], dict[str, Any]] = {}
        unhealthy: set[str] = set()
        loads: list[float] = []
        looks = 0
        while not asking.done():
            time.sleep(LOOK_S)
            looks += 1
            loads.append(os.getloadavg()[0])
            for finding in _findings(service.process.pid):
                found[round(finding.get("time") or 0), finding["code"]] = finding
            unhealthy |= gauges_on(service.metrics(), "unhealthy")
        asking.result()
        return {
            "minutes": round((time.monotonic() - began) / 60, 1), **traffic.told, "looks": looks,
            "load average": [min(loads), max(loads)], "findings": [found[key] for key in sorted(found)],
            "unhealthy": sorted(unhealthy),
        }  # fmt: skip


class _Traffic:
    """Clients that come at random: bursts, single ones, pauses, and one in ten that hangs up."""

    def __init__(self, service: Service, chance: random.Random, logprobs: bool) -> None:
        self._url, self._chance, self._logprobs = service.url, chance, logprobs
        self.told = {"requests": 0, "tokens": 0, "hung_up": 0}

    def ask(self, pool: concurrent.futures.Executor, until: float) -> None:
        """Ask until that time, and wait for the last answer."""
        waiting = []
        while time.monotonic() < until:
            for _ in range(self._chance.choice((1, 1, 2, 4, 12))):
                waiting.append(pool.submit(self._one, random.Random(self._chance.random())))
            time.sleep(self._chance.choice((0.1, 1.0, 3.0, 8.0, LONGEST_PAUSE_S)))
        for one in waiting:
            one.result()

    def _one(self, chance: random.Random) -> None:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"tell {chance.random()}"}],
            "max_tokens": chance.choice((4, 40, 200, 800)),
            "stream": True,
        }
        if self._logprobs and chance.random() < 0.5:
            body |= {"logprobs": True, "top_logprobs": chance.choice((0, 5, 20))}
        leaves = chance.random() < 0.1
        chunks = 0
        with (
            httpx.Client(timeout=120) as client,
            client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as answer,
        ):
            for line in answer.iter_lines():
                chunks += line.startswith("data: {")
                if leaves and chunks > 3:
                    self.told["hung_up"] += 1
                    break
        self.told["requests"] += 1
        self.told["tokens"] += chunks


def _findings(pid: int) -> list[dict[str, Any]]:
    """What `explain` finds in the engine's recorder now."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fd-postproc")), "explain", str(pid), "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    with contextlib.suppress(ValueError):
        return json.loads(done.stdout)["findings"]
    raise RuntimeError(f"explain ended with {done.returncode}: {done.stderr}")


def gauges_on(page: str, *names: str) -> set[str]:
    """Samples of these gauges of fd_postproc that are not 0 on a page of metrics."""
    begins = tuple(f"fd_postproc_{name}{{" for name in names)
    return {
        line.rpartition(" ")[0]
        for line in page.splitlines()
        if line.startswith(begins) and float(line.rpartition(" ")[2])
    }


def seams_left(page: str) -> list[str]:
    """Parts of the plug-in that a page of metrics says are FastDeploy's own, or that it knows none."""
    paths = [line for line in page.splitlines() if line.startswith("fd_postproc_fast_path{")]
    return [line for line in paths if not float(line.rpartition(" ")[2])] if paths else ["no path is there"]
