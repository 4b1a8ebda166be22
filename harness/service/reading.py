"""What ends a result's way: bad messages, errors, a killed API process, a client that does not read."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from .cases import Case, ask, differences, gauges_on, quiet, until, wait_for_requests
from .server import Service, running

LONG: dict[str, Any] = {"max_tokens": 500, "stream": True, "extra_body": {"min_tokens": 499}}
PACE = 0.02
"""Seconds between the worker's steps."""
HANGS_S = 20.0
"""Seconds after which a client that got nothing is said to hang."""
FAULT, ENDS = "fault", "ends"
"""Files in a service's folder that the shim reads."""
BAD = 200
"""Bad messages at once: five come in a row, though the engine's own arrive between them."""
SHORT: dict[str, Any] = {"max_tokens": 20, "stream": True}


def sockets(service: Service) -> list[Path]:
    """Files of the API processes' sockets for results; none where results come one by one (2.5)."""
    return sorted(Path("/dev/shm").glob(f"response_{service.ports[0]}_w*.pull"))


def put(path: Path, messages: list[bytes]) -> None:
    """Send messages to an API process as its engine does."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(f"ipc://{path}")
        for message in messages:
            push.send(message)
        time.sleep(0.5)


def ends(answers: Mapping[str, list[Any]]) -> dict[str, str]:
    """The number of chunks of each answer, and its end, in short."""
    return {
        name: f"{len(got) - 1} chunks, {got[-1] if isinstance(got[-1], str) else json.dumps(got[-1])[:90]}"
        for name, got in answers.items()
    }


def dispatcher(service: Service, *, fault: str = "", opening: bool = False) -> dict[str, Any]:
    """A fault of the dispatcher while four clients stream.

    Parameters
    ----------
    fault : str, optional
        What the shim raises in the dispatcher, and how often: ``OSError 1``.  Default: bad messages, where
        an API process has a socket of its own (not 2.5).
    opening : bool
        Whether it comes with the first message, while the streams are being opened.

    Returns
    -------
    dict
        ``"differences"`` of the streams from what they are without a fault; ``"next"``: how one ended that
        began afterwards; ``"hang"``: how many got nothing for `HANGS_S`; ``"health"``: lines of the metrics.
    """
    file = service.folder / FAULT
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wanted = [Case(f"long{n}", "chat", LONG, f"tell {n}") for n in range(4)]
        service.pace(0.0)
        right = ask(service, wanted, side_by_side=4)
        service.pace(PACE)
        if opening:
            file.write_text(fault)
        waiting = pool.submit(ask, service, wanted, seconds=HANGS_S, side_by_side=4)
        wait_for_requests(service, 4)
        time.sleep(1)
        if not opening and fault:
            file.write_text(fault)
        elif not opening and sockets(service):
            put(sockets(service)[0], [b"\xc1 no message"] * BAD)
        time.sleep(2)
        health = [line for line in service.metrics().splitlines() if line.startswith("fd_postproc_api_disp")]
        got = waiting.result(300)
        after = ask(service, [Case("next", "chat", SHORT, "next")], seconds=HANGS_S)
        hang = sum(one[-1] == "hangs" for one in (*got.values(), *after.values()))
        return {
            "clients": ends(got), "differences": differences(right, got, crowd=True), "next": ends(after),
            "hang": hang, "health": health,
        }  # fmt: skip


def busiest(service: Service, count: int = 1) -> list[int]:
    """The API processes that hold the most open files: those with the most clients."""
    held = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in service.api_servers()}
    return sorted(held, key=lambda pid: -held[pid])[:count]


def api_process(service: Service, *, victims: int = 1) -> dict[str, Any]:
    """``kill -9`` of the busiest of four API processes, which gunicorn starts again, beside the others.

    Parameters
    ----------
    victims : int
        How many are killed at once.

    Returns
    -------
    dict
        ``"live"``: requests before, and 10 and 20 s after the kill; ``"quiet"``: whether none runs in the
        end; ``"cut"``: streams that the kill has ended; ``"differences"`` of all others from what they are
        without a kill; ``"next"``: how streams ended that began afterwards; ``"hang"``: how many got nothing
        for a minute; ``"log"``: lines of the plug-in.
    """
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wanted = [Case(f"long{n}", "chat", LONG, f"tell {n}") for n in range(12)]
        service.pace(0.0)
        right = ask(service, wanted, side_by_side=len(wanted))
        service.pace(3 * PACE)
        waiting = pool.submit(ask, service, wanted, seconds=3 * HANGS_S, side_by_side=len(wanted))
        wait_for_requests(service, len(wanted))
        time.sleep(2)
        live = [service.live()]
        for pid in busiest(service, victims):
            os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            time.sleep(10)
            live.append(service.live())
        after = ask(service, [Case(f"next{n}", "chat", SHORT, "next") for n in range(4)], seconds=HANGS_S)
        service.pace(0.0)
        got = waiting.result(600)
        cut = [name for name, one in got.items() if isinstance(one[-1], dict)]
        others = {name: one for name, one in got.items() if name not in cut}
        return {
            "live": live, "quiet": quiet(service), "cut": len(cut), "next": ends(after),
            "differences": differences({name: right[name] for name in others}, others, crowd=True),
            "hang": sum(one[-1] == "hangs" for one in (*got.values(), *after.values())),
            "log": [line[-160:] for line in service.log().splitlines() if "fd_postproc: API process" in line],
        }  # fmt: skip


def engine_thread(service: Service, *, thread: str) -> dict[str, Any]:
    """SystemExit in a thread of the engine, which FastDeploy's ends of, while clients stream.

    Parameters
    ----------
    thread : str
        Name of its function.

    Returns
    -------
    dict
        ``"clients"``, ``"next"``: how streams ended, and some that began afterwards; ``"hang"``: how many got
        nothing for `HANGS_S`; ``"alarms"``: gauges of health; ``"log"``: lines of the plug-in.
    """
    file = service.folder / ENDS
    service.pace(PACE)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wanted = [Case(f"long{n}", "chat", LONG, f"tell {n}") for n in range(4)]
        waiting = pool.submit(ask, service, wanted, seconds=HANGS_S, side_by_side=4)
        wait_for_requests(service, 4)
        time.sleep(1)
        file.write_text(thread)
        until(lambda: not file.exists(), 10)
        after: dict[str, Any] = {}
        for n in range(2):  # a thread that waits for requests ends with the first
            after.update(ask(service, [Case(f"next{n}", "chat", SHORT, "next")], seconds=HANGS_S))
        alarms: list[str] = []
        with contextlib.suppress(httpx.HTTPError):  # the engine may have ended with its thread
            alarms = sorted(gauges_on(service.metrics(), "unhealthy", "busy"))
        got = waiting.result(300)
        return {
            "clients": ends(got), "next": ends(after), "alarms": alarms,
            "hang": sum(one[-1] == "hangs" for one in (*got.values(), *after.values())),
            "log": [line[-160:] for line in service.log().splitlines() if "SystemExit" in line][:4],
        }  # fmt: skip


@contextlib.contextmanager
def stalled(port: int, tokens: int) -> Iterator[socket.socket]:
    """The connection of a client that asks for a stream of so many tokens and does not read."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(
            {"model": "default", "messages": [{"role": "user", "content": "a"}], "stream": True,
             "max_tokens": tokens, "min_tokens": tokens - 1}
        ).encode()  # fmt: skip
        slow.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        yield slow


def slow_socket(service: Service, *, seconds: float = 20.0) -> dict[str, Any]:
    """A client that stops reading its stream, beside one that reads.

    Returns
    -------
    dict
        ``"tokens"``: that the engine made meanwhile; ``"MiB"``: by which the API process grew; ``"clients"``.
    """
    service.pace(0.002)
    with stalled(service.ports[0], 30000):
        (pid,) = service.api_servers()
        until(lambda: service.live() == 1, 60)
        before = memory(pid)
        began = _tokens(service)
        ends_at = time.monotonic() + seconds
        answers = {}
        while time.monotonic() < ends_at:
            answers.update(ask(service, [Case("beside", "chat", SHORT, "b")], seconds=HANGS_S))
        return {
            "tokens": _tokens(service) - began, "MiB": round((memory(pid) - before) / 2**20, 1),
            "clients": ends(answers), "hang": sum(one[-1] == "hangs" for one in answers.values()),
        }  # fmt: skip


def memory(pid: int) -> int:
    """Bytes of a process that are resident and its own: not those of files and of the flight recorder."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.findall(r"RssAnon:\s+(\d+)", status)[0])


def _tokens(service: Service) -> int:
    found = re.findall(r"^fastdeploy:generation_tokens_total(?:{.*})? (\S+)", service.metrics(), re.M)
    return int(float(found[0])) if found else 0


ROWS: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
    "kill -9 of one of four API processes": (4, api_process),
    "kill -9 of two of four API processes": (4, functools.partial(api_process, victims=2)),
    "bad messages": (1, dispatcher),
    "an OSError in the dispatcher": (1, functools.partial(dispatcher, fault="OSError 1")),
    "an OSError in the dispatcher while streams are opened": (
        1, functools.partial(dispatcher, fault="OSError 1", opening=True)
    ),
    "MemoryErrors in the dispatcher": (1, functools.partial(dispatcher, fault="MemoryError 5")),
    "a client that stops reading": (1, slow_socket),
    "SystemExit in the token thread": (
        1, functools.partial(engine_thread, thread="process_sampling_results")
    ),
    "SystemExit in the sender's thread": (
        1, functools.partial(engine_thread, thread="_zmq_send_generated_tokens")
    ),
    "SystemExit in the scheduling thread": (
        1, functools.partial(engine_thread, thread="_schedule_request_to_worker_v1")
    ),
}  # fmt: skip
"""Processes of the API server, and what is done to the service."""


def run(
    tree: Path, folder: Path, *, plug_in: bool, only: Collection[str] = tuple(ROWS)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of `ROWS`, and what was seen.

    With the plug-in a service goes on to the next row; what has ended in FastDeploy's own stays so.
    """
    rows = [(what, *ROWS[what]) for what in only]
    groups = itertools.groupby(rows, key=lambda row: row[1] if plug_in else row[0])
    for number, (_, group) in enumerate(groups):
        together = list(group)
        place = folder / str(number)
        with running(
            tree, place, plug_in=plug_in, requests=32, workers=together[0][1],
            environment={
                "FD_SERVICE_DISPATCHER_FAULT": str(place / FAULT),
                "FD_SERVICE_ENDS_THREAD": str(place / ENDS),
            },
        ) as service:  # fmt: skip
            for what, _, act in together:
                yield what, act(service)
