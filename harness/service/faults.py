"""What no service should meet: default limits, deaths, messages of an earlier run, a neighbour."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from fd_postproc.support.process_stat import cpu_seconds

from .cases import PROMPTS, Case, ask, differences, gauges_on, quiet, until, wait_for_requests
from .counters import WORK
from .namespace import DEFAULT, RAISED, Namespace
from .server import HTTP, UNMENDED, Service, free_ports, running

SHORT = 10.0
"""Seconds after which a client that got nothing is said to hang."""

PACE, SLEEP = 0.03, 8.0
"""Seconds between a worker's steps; for which it sleeps."""


def simple(channel: str) -> list[Case]:
    """A few requests, with logprobs where the channel has them."""
    more = {"logprobs": True, "top_logprobs": 5} if channel.endswith("topk") else {}
    return [
        Case(f"simple{number}", "chat", {"max_tokens": 24, "stream": True, **more}, prompt)
        for number, prompt in enumerate(PROMPTS)
    ]


def reference(tree: Path, folder: Path, channel: str) -> dict[str, list[Any]]:
    """What FastDeploy's own service answers under raised limits."""
    with running(tree, folder, plug_in=False, channel=channel, requests=32) as service:
        return ask(service, simple(channel))


def default_limits(tree: Path, folder: Path, channel: str, *, plug_in: bool) -> dict[str, list[Any]]:
    """The same where the kernel's limits are the default ones: a client that gets nothing "hangs"."""
    with running(
        tree, folder, limits=DEFAULT, plug_in=plug_in, channel=channel, requests=32, environment=UNMENDED
    ) as service:
        return ask(service, simple(channel), seconds=SHORT, side_by_side=8)


def nobody_asks(tree: Path, folder: Path, *, plug_in: bool, plain: bool = True) -> dict[str, list[Any]]:
    """A service with logprobs enabled, asked for none, and then for some by every second client.

    Its worker sends a plain message for each step in which no request wants logprobs, as FastDeploy's own
    does; with `plain` false one of logprobs all the same.
    """
    wanted = simple("plain") + [case._replace(name=f"asked-{case.name}") for case in simple("topk")]
    more = UNMENDED | ({"FD_SERVICE_UNASKED": "plain"} if plain else {})
    with running(tree, folder, plug_in=plug_in, channel="topk", requests=32, environment=more) as service:
        answers = ask(service, wanted[: len(PROMPTS)], seconds=SHORT, side_by_side=8)
        mixed = [case for pair in zip(wanted, wanted[len(PROMPTS) :], strict=False) for case in pair]
        again = ask(service, mixed, seconds=SHORT, side_by_side=8)
        return answers | {f"again-{name}": got for name, got in again.items()}


def death(tree: Path, folder: Path, channel: str, *, whose: str, plug_in: bool) -> dict[str, Any]:
    """``kill -9`` of a process while clients stream; then a restart on the same ports and queues.

    Parameters
    ----------
    whose : {"worker", "engine"}

    Returns
    -------
    dict
        ``"clients"``: whether each stream ended, and how, within 30 s.  ``"stale"``: messages that
        waited when the second service was started.  ``"answers"``: of the second service.
    """
    ports = free_ports(4)
    long = {"max_tokens": 4000, "stream": True, "extra_body": {"min_tokens": 3999}}
    with Namespace(RAISED) as namespace:
        given = {
            "plug_in": plug_in, "channel": channel, "namespace": namespace, "ports": ports, "requests": 32,
            "environment": UNMENDED,
        }  # fmt: skip
        first = Service(tree, folder / "first", **given)
        first.start()
        try:
            first.wait(300)
            first.pace(0.01)
            streams: dict[str, list[Any]] = {}
            wanted = [Case(f"long{n}", "chat", long, f"tell {n}") for n in range(4)]
            asking = threading.Thread(
                target=lambda: streams.update(ask(first, wanted, seconds=30, side_by_side=4)), daemon=True
            )
            asking.start()
            wait_for_requests(first, len(wanted))
            time.sleep(0.5)
            victim = first.workers()[0] if whose == "worker" else first.process.pid
            first.kill(victim)
            if whose == "engine":  # its worker goes on, into a queue that is not emptied
                until(lambda: namespace.waiting() > 8, 10)
            asking.join(60)
            clients = {name: got[-1] if got else "nothing" for name, got in streams.items()}
        finally:
            first.stop()
        stale = namespace.waiting()
        with Service(tree, folder / "second", **given) as second:
            second.wait(300)
            answers = ask(second, simple(channel), seconds=SHORT)
        return {"clients": clients, "stale": stale, "answers": answers}


def engine_gone(
    tree: Path,
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    stopped: float = 0.0,
    restored: bool = False,
) -> dict[str, Any]:
    """``kill -9`` of the engine, whose API process goes on: what its clients get, with the plug-in.

    Parameters
    ----------
    environment : mapping, optional
        Of the service.
    stopped : float
        Seconds for which the engine is stopped before, and goes on.
    restored : bool
        Whether a snapshot is restored before, and once more when the engine is dead.

    Returns
    -------
    dict
        ``"early"``: clients whose answer ended before the death.  ``"waiting"``, ``"new"``: by name, the last
        part that each client got; of those that waited, and of those that asked afterwards.  ``"seconds"``:
        from the death to the end of the last that waited.  ``"health"``: status of ``/health`` then.
    """
    long: dict[str, Any] = {"max_tokens": 4000, "extra_body": {"min_tokens": 3999}}
    kinds = [(path, stream) for path in ("chat", "completion") for stream in (False, True)]

    def cases(name: str) -> list[Case]:
        return [
            Case(f"{name}-{path}-{stream}", path, {**long, "stream": stream}, name) for path, stream in kinds
        ]

    with (
        running(
            tree, folder, plug_in=True, channel="topk", requests=32, environment=environment
        ) as service,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):  # fmt: skip
        service.pace(0.01)
        waiting = pool.submit(ask, service, cases("waiting"), seconds=60 + stopped, side_by_side=len(kinds))
        wait_for_requests(service, len(kinds))
        if stopped:
            os.kill(service.process.pid, signal.SIGSTOP)
            time.sleep(stopped)
            os.kill(service.process.pid, signal.SIGCONT)
            time.sleep(1)
        if restored:
            service.restore()
            time.sleep(1)
        early = waiting.done()
        service.kill()
        died = time.monotonic()
        ends = {name: got[-1] for name, got in waiting.result(60).items()}
        seconds = time.monotonic() - died
        if restored:
            service.restore()
            time.sleep(1)
        new = {name: got[-1] for name, got in ask(service, cases("new"), side_by_side=len(kinds)).items()}
        health = HTTP.get(f"{service.url}/health", timeout=10).status_code
        return {"early": early, "waiting": ends, "new": new, "seconds": seconds, "health": health}


def quiet_worker(tree: Path, folder: Path, *, seconds: Sequence[float] = (6, 20)) -> dict[str, Any]:
    """A worker that sends nothing for a while, because it works, sleeps, or was killed.

    Returns
    -------
    dict
        By what it did (``"works 6 s"``, ``"sleeps"``, ``"killed"``) what the gauges of health said meanwhile.
        ``"idle"``: its share of a processor while it slept and three seconds more.  ``"clients"``: how each
        stream ended.  ``"log"``: lines of the health.
    """
    long: dict[str, Any] = {"max_tokens": 9000, "stream": True, "extra_body": {"min_tokens": 8999}}
    cases = [Case(f"long{n}", "chat", long, f"tell {n}") for n in range(4)]
    with (
        running(tree, folder, plug_in=True, requests=32) as service,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):

        def during(interval: float, lasts: float) -> list[str]:
            service.pace(interval)
            found, end = set(), time.monotonic() + lasts
            while time.monotonic() < end:
                with contextlib.suppress(httpx.HTTPError):  # the engine ends after its worker
                    found |= gauges_on(service.metrics(), "unhealthy", "busy")
                time.sleep(0.2)
            service.pace(PACE)
            time.sleep(3)
            return sorted(found)

        service.pace(PACE)
        asking = pool.submit(ask, service, cases, seconds=300, side_by_side=len(cases))
        wait_for_requests(service, len(cases))
        time.sleep(3)
        told: dict[str, Any] = {f"works {lasts:g} s": during(WORK, lasts) for lasts in seconds}
        (worker,) = service.workers()
        before = cpu_seconds(worker) or 0.0
        told["sleeps"] = during(-1, SLEEP)
        told["idle"] = round(((cpu_seconds(worker) or 0.0) - before) / (SLEEP + 3), 3)
        service.kill(worker)
        told["killed"] = during(PACE, 3)
        told["clients"] = {name: got[-1] for name, got in asking.result(600).items()}
        lines = dict.fromkeys(service.log().splitlines())
        told["log"] = [line for line in lines if "watch.py" in line and "fd_postproc" in line]
        return told


def neighbours(tree: Path, folder: Path, channel: str) -> list[str]:
    """Two services at once, one of them FastDeploy's own, asked together: how their answers differ."""
    with Namespace(RAISED) as namespace:
        services = [
            Service(
                tree, folder / name, plug_in=name == "on", channel=channel, namespace=namespace, requests=32,
                environment=UNMENDED,
            )
            for name in ("off", "on")
        ]  # fmt: skip
        try:
            for service in services:
                service.start()
            for service in services:
                service.wait(300)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                answers = list(
                    pool.map(lambda service: ask(service, simple(channel), side_by_side=4), services)
                )
            assert all(map(quiet, services))
            return differences(*answers, crowd=True)
        finally:
            for service in services:
                service.stop()
