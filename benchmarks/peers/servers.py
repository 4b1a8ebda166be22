"""An engine's own API server before a stand-in engine, and what a token costs each of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .load import Answers, Load, Model
from .stand_in import ORDER

ROOT = Path(__file__).resolve().parents[2]
READY = 900.0
"""Seconds that a server has to answer."""
ACCEPTED = 2
"""Tokens of each stream in a step."""
STAND_IN, SERVER, IDLE = "stand-in", "API server", "resource_tracker"
ROLES = (IDLE, "vllm-rs", "detokenizer")
"""What a process does, by a word of its command line; any other is the API server's."""


class Server(NamedTuple):
    """A way to serve.

    Attributes
    ----------
    name : str
    engine : str
        Whose environment it runs in.
    module : str
        What is run.
    options : tuple of str
        ``{model}`` and ``{port}`` are filled in.
    environment : dict of str to str
    setting : str
        What it is told beyond its defaults, in words.
    more : dict
        Of each request's body.
    """

    name: str
    engine: str
    module: str
    options: tuple[str, ...]
    environment: dict[str, str]
    setting: str
    more: dict[str, Any]


_VLLM = (
    *("{model}", "--served-model-name", "default", "--host", "127.0.0.1", "--port", "{port}"),
    *("--max-num-seqs", "1024", "--max-model-len", "32768", "--disable-uvicorn-access-log"),
)
_SGLANG = (
    *("--model-path", "{model}", "--served-model-name", "default", "--host", "127.0.0.1", "--port", "{port}"),
    *("--device", "cpu", "--skip-server-warmup", "--incremental-streaming-output", "--log-level", "warning"),
)
_MODEL = {"model": "default", "ignore_eos": True}
SERVERS = (
    Server("vLLM", "vllm", "vllm_serve", _VLLM, {}, "uvloop, one API process", _MODEL),
    Server(
        "vLLM, vllm-rs",
        "vllm",
        "vllm_serve",
        _VLLM,
        {"VLLM_USE_RUST_FRONTEND": "1"},
        "its Rust front end",
        _MODEL,
    ),
    Server(
        "SGLang", "sglang", "sglang_serve", _SGLANG, {}, "incremental streaming, one process each", _MODEL
    ),
)


class Running:
    """A server that runs.

    Parameters
    ----------
    url : str
    pid : int
        Of the process that was started.
    told : Path
        Where the stand-in engine has told its process id.
    """

    def __init__(self, url: str, pid: int, told: Path) -> None:
        self.url, self.pid, self._told = url, pid, told

    def processes(self) -> dict[int, str]:
        """Its processes, and what each does."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                number = int(entry.name)
                parents[number] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[number] = (entry / "cmdline").read_text()
        found, before = {self.pid}, 0
        while len(found) != before:
            before = len(found)
            found |= {one for one, parent in parents.items() if parent in found}
        stand_in = int(self._told.read_text() or 0) if self._told.exists() else 0
        roles = {one: next((role for role in ROLES if role in names.get(one, "")), SERVER) for one in found}
        return roles | ({stand_in: STAND_IN} if stand_in in found else {})

    def clocks(self) -> dict[str, float]:
        """CPU seconds of its processes, by what they do."""
        spent: dict[str, float] = {}
        for pid, role in self.processes().items():
            with contextlib.suppress(OSError):
                clock = time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of a process
                spent[role] = spent.get(role, 0.0) + clock
        return spent

    def resident(self) -> int:
        """Bytes of memory of all processes but the stand-in."""
        pages = 0
        for pid, role in self.processes().items():
            if role != STAND_IN:
                with contextlib.suppress(OSError):
                    pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def serving(server: Server, python: Path, model: Model, interval: float) -> Iterator[Running]:
    """A server that answers; ended afterwards with all that it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told, log = model.folder / "stand-in", model.folder / "log"
    order = {"accepted": ACCEPTED, "interval": interval, "usable": model.usable, "told": str(told)}
    options = [one.format(model=model.folder, port=port) for one in server.options]
    environment = os.environ | server.environment | {ORDER: json.dumps(order), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", f"{__package__}.{server.module}", *options]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    running, deadline = Running(f"http://127.0.0.1:{port}", process.pid, told), time.monotonic() + READY
    try:
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{server.name} does not answer: {log.read_text(errors='replace')[-2000:]}"
                )
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{running.url}/health", timeout=5):
                break
            time.sleep(0.5)
        yield running
    finally:
        for pid in running.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def order_of(load: Load, model: Model, url: str, more: dict[str, Any]) -> dict[str, Any]:
    """What the load generator is told: its streams, and the answer that is right."""
    answers = Answers(model.usable)
    text = {one: model.text([one]) for one in model.usable}
    ids, scores, _ = answers.columns(load.top or 0)
    tops = None
    if load.top is not None:
        tops = [
            [[text[token], score] for token, score in zip(row, values, strict=True)]
            for row, values in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
    texts = [text[token] for token in ids[:, 0].tolist()]
    return {
        "url": url, "streams": load.streams, "top": load.top, "more": more, "texts": texts, "tops": tops,
    }  # fmt: skip


def measure(server: Server, running: Running, load: Load, model: Model, seconds: float) -> dict[str, Any]:
    """One load: every answer is checked; a wrong one gives no figures."""
    idle = running.resident()
    clients = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.clients"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert clients.stdin is not None
    assert clients.stdout is not None
    try:
        clients.stdin.write(json.dumps(order_of(load, model, running.url, server.more)) + "\n")
        clients.stdin.flush()
        if clients.stdout.readline().strip() != "begun":
            raise RuntimeError(f"{server.name}: not every stream has begun")
        before = running.clocks()
        print("go", file=clients.stdin, flush=True)
        time.sleep(seconds)
        after, more = running.clocks(), running.resident()
        print("stop", file=clients.stdin, flush=True)
        seen = json.loads(clients.stdout.readline())
    finally:
        clients.kill()
        clients.wait()
    if seen["wrong"]:
        raise RuntimeError(f"{server.name}: another answer than sent: {seen['wrong'][0]}")
    spent = {one: after[one] - before.get(one, 0.0) for one in after}
    return {"streams": load.streams, "top": load.top, **row(seen, spent, (more - idle) / load.streams)}


def row(seen: dict[str, Any], spent: dict[str, float], memory: float) -> dict[str, Any]:
    """The figures of a load.

    Returns
    -------
    dict
        ``us``: CPU microseconds a token by process, the stand-in's apart; ``tokens a second and core`` of all
        but the stand-in; gaps in ms; bytes a token; resident bytes a stream.
    """
    tokens, gaps = max(seen["tokens"], 1), seen["gaps"]
    us = {one: value / tokens * 1e6 for one, value in sorted(spent.items()) if one != IDLE}
    whole = sum(value for one, value in us.items() if one != STAND_IN)
    return {
        "us": us,
        "us in all": whole,
        "tokens a second": seen["tokens"] / seen["seconds"],
        "tokens a second and core": 1e6 / whole if whole else 0.0,
        "tokens a chunk": seen["tokens"] / max(seen["chunks"], 1),
        "gap p50 ms": gaps[len(gaps) // 2] * 1e3 if gaps else None,
        "gap p99 ms": gaps[len(gaps) * 99 // 100] * 1e3 if gaps else None,
        "bytes a token": seen["bytes"] / tokens,
        "memory a stream": memory,
        "load average": os.getloadavg()[0],
    }
