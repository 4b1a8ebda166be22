"""Rollouts beside streams: what an answer with routed experts costs, and what the streams see of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from .measure import ACCEPTED, Load, measure, settle
from .server import Service, running
from .tables import markdown
from .thinking import SERVERS

SHAPE = 46, 8
"""Layers, and experts of each token in each."""
BLOCK = 64  # tokens of the cache
GENERATED = 12
START_S = 180.0


def run(
    tree: Path,
    folder: Path,
    *,
    streams: int,
    tokens: int,
    every: float,
    interval: float,
    seconds: float,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Measure streams alone, beside ordinary answers, and beside the same answers with experts."""
    rows = []
    for name, plug_in in SERVERS.items():
        for experts in (None, SHAPE):
            place = folder / f"{name}{'-experts' * bool(experts)}"
            with running(
                tree, place, plug_in=plug_in, channel="spec", experts=experts,
                environment={"FD_SERVICE_ACCEPT": str(ACCEPTED)},
            ) as service:  # fmt: skip
                if experts:
                    _fill(service, experts)
                for beside in ("nothing", "answers") if not experts else ("answers with experts",):
                    asked = Asked(service, tokens, 0 if beside == "nothing" else every)
                    load = Load(streams, "plain", interval)
                    row = measure(service, load, seconds=seconds, least=0, beside=asked)
                    rows.append({"server": name, "beside": beside, **row, **asked.told})
                    say(json.dumps(rows[-1]))
                    settle(service)
    return rows


def _fill(service: Service, shape: tuple[int, int]) -> None:
    """Write experts where FastDeploy's workers do: some for each place in a block of the cache."""
    path = Path(f"/dev/shm/routing_host_buffer.{service.ports[1]}")
    buffer = np.memmap(path, np.uint8, "r+").reshape(-1, BLOCK, *shape)
    buffer[:] = np.random.default_rng(1).integers(0, 128, (BLOCK, *shape), np.uint8)


class Asked(contextlib.AbstractContextManager["Asked"]):
    """A process that asks for an answer every some seconds, while it is entered.

    Parameters
    ----------
    service : Service
    tokens : int
        Of prompt and answer together.
    every : float
        Seconds; 0: it asks for nothing.

    Attributes
    ----------
    told : dict
        How many answers came, in how many ms, their size and digest; memory of the API server's process, in
        MB: before, at most, and afterwards.
    """

    def __init__(self, service: Service, tokens: int, every: float) -> None:
        self.service, self.tokens, self.every = service, tokens, every
        self.told: dict[str, Any] = {"answers": 0}

    def __enter__(self) -> Asked:
        if self.every:
            self._ours, theirs = multiprocessing.Pipe()
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(
                target=_ask, args=(self.service.url, self.tokens, self.every, theirs), daemon=True
            )
            self._process.start()
            if not self._ours.poll(START_S) or self._ours.recv() != "asked":  # FastDeploy imports NumPy then
                raise TimeoutError(f"no answer within {START_S} s")
        self._before = self._memory("VmRSS")
        for pid in self.service.api_servers():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the highest use of memory
        return self

    def __exit__(self, *exc: object) -> None:
        if self.every:
            self._ours.send("stop")
            self.told |= self._ours.recv()
            self._process.join()
        self.told["API server MB"] = [self._before, self._memory("VmHWM"), self._memory("VmRSS")]

    def _memory(self, name: str) -> float:
        told = (Path(f"/proc/{pid}/status").read_text() for pid in self.service.api_servers())
        return sum(int(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) for text in told) / 1024


def _ask(url: str, tokens: int, every: float, pipe: Any) -> None:
    """Ask until told to stop: a process of its own, whose clock is not the streams'."""
    prompt = [20 + i % 100 for i in range(tokens - GENERATED)]
    body = {"messages": [], "prompt_token_ids": prompt, "max_tokens": GENERATED, "min_tokens": GENERATED}
    times, sizes, digests = [], set(), set()
    with httpx.Client(timeout=120) as client:
        next_one = time.monotonic()
        while not (len(times) > 0 and pipe.poll(max(next_one - time.monotonic(), 0))):
            next_one, began = max(next_one + every, time.monotonic()), time.monotonic()
            text = b"".join(_answer(client, url, body))
            times.append(1000 * (time.monotonic() - began))
            sizes.add(len(text))
            digests.add(hashlib.sha256(re.sub(rb'"id":"[^"]*"|"created":\d+', b"", text)).hexdigest()[:16])
            if len(times) == 1:
                pipe.send("asked")
        pipe.recv()
    last = times[1:] or times
    pipe.send(
        {"answers": len(last), "answer ms": sum(last) / len(last), "bytes": [*sizes], "digests": [*digests]}
    )


def _answer(client: httpx.Client, url: str, body: dict[str, Any]) -> Iterator[bytes]:
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        yield from answer.iter_raw()


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each server and what goes on beside its streams."""
    heads = (
        "server | beside | >answers | >chunk to chunk, p50 | >p99 | >API server | >engine | >an answer "
        "| >memory: before, most, after | >load"
    )
    lines = []
    for row in rows:
        spent = [row[f"{name} ms"] * row["steps"] / row["seconds"] for name in ("API server", "engine")]
        lines.append(
            (
                row["server"], row["beside"], row["answers"], f"{row['chunk p50 ms']:.0f} ms",
                f"{row['chunk p99 ms']:.0f} ms", *(f"{value:.0f} ms/s" for value in spent),
                _of_one(row, rows), ", ".join(f"{value:.0f}" for value in row["API server MB"]),
                f"{row['load average']:.0f}",
            )
        )  # fmt: skip
    return markdown(heads, lines)


def _of_one(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """CPU milliseconds of an answer in both processes: what is spent more than without any."""
    alone = next((one for one in rows if one["server"] == row["server"] and not one["answers"]), None)
    if alone is None or not row["answers"]:
        return "-"
    spent = [
        (one["API server ms"] + one["engine ms"]) * one["steps"] / one["seconds"] for one in (row, alone)
    ]
    return f"{(spent[0] - spent[1]) * row['seconds'] / row['answers']:.0f} ms"
