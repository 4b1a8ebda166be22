"""What a step costs the engine's process, thread by thread, in the running service."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from .counters import SPRINT, Counters
from .distributed import Nodes
from .namespace import RAISED, Namespace
from .server import Service
from .tables import markdown

LEAST = 20
"""Steps, below which a measurement goes on for up to four times as long."""
LATE = 20.0
"""Seconds that measuring waits for the clients whose answer has not begun."""
START = 120.0
"""Seconds, within which each client has to have a chunk."""
ACCEPTED = 2
"""Tokens of a request in each step."""
ENVIRONMENT = {"FD_SERVICE_ACCEPT": str(ACCEPTED)}
BLOCKS = 10000
"""Of a node: a request of 64 has 10,000 tokens."""
THREADS = {
    "process_sampling_results": "token",
    "_zmq_send_generated_tokens": "sender",
    "_schedule_request_to_worker_v1": "schedule",
    "manager": "manager",  # the process that keeps the task queue
}
KINDS = {"plain": ("spec", None), "1 column": ("spec_topk", 0), "21 columns": ("spec_topk", 20)}
"""Channel and ``top_logprobs``; two tokens a step in all of them."""

WAYS = {"off": False, "on": True}
"""Ways to serve: whether the plug-in is in."""


class Load(NamedTuple):
    """What is measured.

    Attributes
    ----------
    requests : int
        That stream at the same time.
    kind : str
        Of `KINDS`.
    interval : float
        Seconds from a step to the next; 0: the worker sends as fast as the queue takes it.
    after : int
        Tokens of each answer before it is measured.
    counted : bool
        Whether clients count tokens, by the usage that each chunk has then; else chunks of `ACCEPTED` tokens.
    """

    requests: int
    kind: str
    interval: float
    after: int = 0
    counted: bool = False


def measure(
    service: Service,
    load: Load,
    *,
    seconds: float = 5.0,
    least: int = LEAST,
    beside: contextlib.AbstractContextManager[Any] | None = None,
    url: str = "",
) -> dict[str, Any]:
    """Measure one load; the service has to be started with two accepted tokens a step.

    Parameters
    ----------
    url : str
        Where clients ask, if not the service itself: the router before a decode node.
    seconds : float
        Up to four times as long with fewer steps than `least`.
    beside : context manager, optional
        What goes on meanwhile: it is entered when all streams run, and left when they have been measured.

    Returns
    -------
    dict
        CPU milliseconds a step of the threads of the engine's process and of the API server, CPU microseconds
        of the API server for a chunk that a client got, steps a second, tokens a second that the clients got,
        and their times: milliseconds to the first chunk, and from chunk to chunk.
    """
    worker = Counters(service.counters)
    worker.pace(-1)  # until all are there: FastDeploy gives a worker one new request at a time
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    clients = context.Process(target=_clients, args=(url or service.url, load, theirs), daemon=True)
    clients.start()
    try:
        _until(lambda: worker.read()[1] == load.requests, 120, f"{load.requests} requests")
        if load.after:
            wanted = worker.read()[2] + load.requests * load.after
            worker.pace(SPRINT)
            _until(lambda: worker.read()[2] >= wanted, 3600, f"{load.after} tokens of each")
            worker.pace(-1)
            _until(lambda: _is_idle(service), 3600, "API server that has written what it has")
        worker.pace(load.interval)
        _steps(worker, 5)
        with beside or contextlib.nullcontext():
            ours.send("measure")
            if not ours.poll(START) or ours.recv() != "measuring":
                raise TimeoutError(f"no first chunk for every client within {START} s")
            asked = _waits(service)[0]
            before, steps, start = _clocks(service), _received(service, worker), time.monotonic()
            time.sleep(seconds)
            while _received(service, worker) < steps + least and time.monotonic() < start + 4 * seconds:
                time.sleep(0.1)
            after, more, end = _clocks(service), _received(service, worker), time.monotonic()
            live = worker.read()[1]
            ours.send("stop")
            times = ours.recv()
        waited = _waited(service, asked)
    finally:
        worker.pace(-2)
        clients.terminate()
        clients.join()
    count = max(more - steps, 1)
    spent = {name: (after[name] - before.get(name, 0)) / count * 1000 for name in after}
    engine = sum(spent[name] for name in spent if name not in ("API server", "manager"))
    chunks = times["chunks"] / times["client seconds"] * (end - start)
    return {
        **load._asdict(),
        "live": live,
        "load average": os.getloadavg()[0],
        "steps": count,
        "steps a second": count / (end - start),
        "seconds": end - start,
        "tokens a second": (times.get("tokens") or ACCEPTED * times["chunks"]) / times["client seconds"],
        **{f"{name} ms": value for name, value in sorted(spent.items())},
        "API server us a chunk": spent["API server"] * count * 1000 / max(chunks, 1),
        "engine ms": engine,
        **waited,
        **times,
    }


def _clocks(service: Service) -> dict[str, float]:
    """CPU seconds: of each kind of thread in the engine's process, and of the API server."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(service.clocks))
        answer = b"".join(iter(lambda: asking.recv(1 << 16), b""))
    found: dict[str, float] = {}
    for name, spent in json.loads(answer).values():
        kind = next((kind for function, kind in THREADS.items() if function[:15] == name), "other")
        found[kind] = found.get(kind, 0.0) + spent
    found["API server"] = api_clock(service)
    return found


def _waits(service: Service) -> tuple[int, np.ndarray[Any, np.dtype[np.float32]]]:
    """How often the worker has asked its task queue, and how long the last answers took, in seconds."""
    data = service.counters.with_name("waits").read_bytes()
    return int.from_bytes(data[:8], "little"), np.frombuffer(data, np.float32, offset=8)


def _waited(service: Service, asked: int) -> dict[str, float]:
    """Microseconds that the worker waits for the task queue at each step, since it had asked so often."""
    count, kept = _waits(service)
    last = np.arange(max(asked, count - len(kept)), count) % len(kept)
    if not len(last):
        return {}
    p50, p99 = np.percentile(kept[last], (50, 99)) * 1e6
    return {"worker's wait p50 us": float(p50), "worker's wait p99 us": float(p99)}


def _received(service: Service, worker: Counters) -> int:
    """Steps that the engine has taken out of the queue."""
    return worker.read()[0] - service.namespace.waiting()


def _process_clock(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of a process


def _steps(worker: Counters, count: int, seconds: float = 60) -> None:
    first = worker.read()[0]
    _until(lambda: worker.read()[0] >= first + count, seconds, f"{count} steps")


def api_clock(service: Service) -> float:
    """CPU seconds of the API server's processes."""
    return sum(map(_process_clock, service.api_servers()))


def _is_idle(service: Service) -> bool:
    """Whether the API server does nothing for a second: it lags behind a worker that does not wait."""
    busy = api_clock(service)
    time.sleep(1)
    return api_clock(service) - busy < 0.05


def _until(true: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds} s")
        time.sleep(0.005)


def _clients(url: str, load: Load, pipe: Any) -> None:
    """Run in a process of its own: stream, and note when chunks come."""
    asyncio.run(_stream_all(url, load, pipe))


class _Seen:
    """What all streams have got: seconds to the first chunk and between chunks, and tokens."""

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.gaps: list[float] = []
        self.tokens = 0
        self.measuring = False

    def times(self) -> dict[str, Any]:
        found: dict[str, Any] = {"chunks": len(self.gaps), "tokens": self.tokens}
        if self.firsts:
            found["first chunk ms"] = statistics.median(self.firsts) * 1000
        if len(self.gaps) > 1:
            cuts = statistics.quantiles(self.gaps, n=100)
            found |= {"chunk p50 ms": cuts[49] * 1000, "chunk p99 ms": cuts[98] * 1000}
        return found


async def _stream_all(url: str, load: Load, pipe: Any) -> None:
    seen, began = _Seen(), 0.0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:
        tasks = [
            asyncio.create_task(_stream(session, url, number, load, seen)) for number in range(load.requests)
        ]
        while True:
            while not pipe.poll():
                await asyncio.sleep(0.02)
            if pipe.recv() == "stop":
                break
            patience = time.perf_counter() + LATE
            # In a server that lags behind the last one comes late, or never if the engine runs ahead.
            while len(seen.firsts) < load.requests and time.perf_counter() < patience:
                await asyncio.sleep(0.02)
            seen.measuring = True
            began = time.perf_counter()
            pipe.send("measuring")
        seconds = time.perf_counter() - began
        pipe.send({"client seconds": seconds, **seen.times()})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(session: aiohttp.ClientSession, url: str, number: int, load: Load, all_: _Seen) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"request {number}"}],
        "max_tokens": 32700,
        "min_tokens": 32700,
        "stream": True,
    }
    top = KINDS[load.kind][1]
    if top is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    if load.counted:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    start = last = time.perf_counter()
    seen = counted = 0
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        async for data in answer.content.iter_any():
            events = data.count(b"data: ")
            now = time.perf_counter()
            if load.counted and (usages := re.findall(rb'"completion_tokens":(\d+)\D', data)):
                if all_.measuring:
                    all_.tokens += int(usages[-1]) - counted
                counted = int(usages[-1])
            if seen <= 1 < seen + events:
                all_.firsts.append(now - start)
            elif all_.measuring and events:
                all_.gaps.extend([(now - last) / events] * events)
            seen, last = seen + events, now


def run(
    tree: Path,
    folder: Path,
    *,
    requests: list[int],
    kinds: list[str],
    intervals: list[float],
    seconds: float,
    ways: Sequence[str] = ("off", "on"),
    nodes: bool = False,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Measure everything: each of `WAYS` that is asked for takes its turn at each load.

    `nodes`: then also of a decode node, behind one prefill node of FastDeploy's own.
    """
    rows = []
    services = {"one engine": _services, **({"decode node": _nodes} if nodes else {})}
    for (name, begin), kind in itertools.product(services.items(), kinds):
        with contextlib.ExitStack() as stack:
            asked = begin(stack, tree, folder / kind.replace(" ", ""), kind, ways)
            for interval, count, way in itertools.product(intervals, requests, ways):
                with asked(way) as (service, url):
                    with contextlib.suppress(TimeoutError):
                        row = measure(service, Load(count, kind, interval), seconds=seconds, url=url)
                        rows.append({"service": name, "plug-in": WAYS[way], **row})
                        say(json.dumps(rows[-1]))
                    settle(service)
    return rows


Asked = Callable[[str], contextlib.AbstractContextManager[tuple[Service, str]]]
"""The service of a way that is measured, and where its clients ask."""


def _services(stack: contextlib.ExitStack, tree: Path, folder: Path, kind: str, ways: Sequence[str]) -> Asked:
    """One for each way, in an IPC namespace of its own."""
    services = {
        way: stack.enter_context(
            Service(
                tree, Path(f"{folder}-{way}"), plug_in=WAYS[way], channel=KINDS[kind][0],
                namespace=stack.enter_context(Namespace(RAISED)), environment=ENVIRONMENT,
            )
        )
        for way in ways
    }  # fmt: skip
    for service in services.values():
        service.wait(300)
    return lambda way: contextlib.nullcontext((services[way], services[way].url))


def _nodes(stack: contextlib.ExitStack, tree: Path, folder: Path, kind: str, ways: Sequence[str]) -> Asked:
    namespace = stack.enter_context(Namespace(RAISED))
    nodes = Nodes(
        tree, Path(f"{folder}-nodes"), namespace, [(False, WAYS[way]) for way in ways],
        channel=KINDS[kind][0], requests=256, blocks=BLOCKS, environment=ENVIRONMENT,
    )  # fmt: skip
    stack.enter_context(nodes)

    @contextlib.contextmanager
    def asked(way: str) -> Iterator[tuple[Service, str]]:
        with nodes.pair(False, WAYS[way]) as pair:
            yield pair.decode, pair.url

    return asked


def settle(service: Service, seconds: float = 90) -> None:
    """Until no request is left, the queue is empty, and the API server has nothing to do."""
    worker = Counters(service.counters)
    worker.pace(-2)
    steps = -1
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = worker.read()[0]
        if _is_idle(service) and now == steps and service.namespace.waiting() == 0:
            return
        steps = worker.read()[0]


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each service and load, the ways to serve beside each other."""
    heads = (
        "service | requests, columns | between steps | >token thread | >sender | >schedule | >other "
        "| >engine | >task queue's manager | >worker's wait, us, p50 | >p99 | >steps a second | >API server "
        "| >API server, us a chunk | >chunk to chunk, p50 | >p99"
    )
    names = (
        *(f"{name} ms" for name in ("token", "sender", "schedule", "other", "engine", "manager")),
        *("worker's wait p50 us", "worker's wait p99 us", "steps a second", "API server ms"),
        *("API server us a chunk", "chunk p50 ms", "chunk p99 ms"),
    )

    def load_of(row: dict[str, Any]) -> tuple[str, float, int, int]:
        return row["service"], row["interval"], list(KINDS).index(row["kind"]), row["requests"]

    ways = [plug_in for plug_in in WAYS.values() if any(row["plug-in"] is plug_in for row in rows)]
    lines = []
    for load, group in itertools.groupby(sorted(rows, key=load_of), load_of):
        found = {row["plug-in"]: row for row in group}
        service, interval, kind, requests = load
        pace = f"{interval * 1000:.0f} ms" if interval else "none"
        cells = [" / ".join(_number(found.get(way, {}).get(name)) for way in ways) for name in names]
        lines.append((service, f"{requests}, {list(KINDS)[kind]}", pace, *cells))
    return markdown(heads, lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
