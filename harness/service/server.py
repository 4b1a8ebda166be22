"""One FastDeploy service: started, waited for, and cleaned up after."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from . import model
from .counters import Counters
from .namespace import RAISED, Namespace

HERE = Path(__file__).resolve().parent
CHANNELS = ("plain", "topk", "spec", "spec_topk")

HTTP = httpx.Client(verify=False, headers={"Connection": "close"})
"""Of `httpx.get` each call would read all certificates, which costs more than the services' answers."""


class NotReady(Exception):
    """The service ended, or did not answer in time."""


class Service:
    """A FastDeploy server of a source tree.

    Parameters
    ----------
    tree : Path
        Folder that holds ``fastdeploy/``.
    folder : Path
        Where its logs and its model go; made.
    plug_in : bool
        Whether FastDeploy loads fd_postproc.
    channel : {"plain", "topk", "spec", "spec_topk"}
        What the worker sends.
    namespace : Namespace, optional
        Where its queues are; the machine's own.
    draft : bool
        Draft logprobs, on ``spec_topk``.
    requests : int
        ``--max-num-seqs``.
    workers : int
        ``--workers``: processes of the API server.
    parsers : tuple of (str, str)
        ``--reasoning-parser`` and ``--tool-call-parser``; "" is none.
    says : mapping of int to str, optional
        What each answer says from a token on, instead of made-up tokens: ``{0: "<think>"}``.
    experts : tuple of (int, int), optional
        Layers, and experts of each token in each, that answers tell.
    multimodal : bool
        An ERNIE-4.5-VL in place of a text model; asked for texts only.
    role : {"mixed", "prefill", "decode"}
        ``--splitwise-role``; a prefill and a decode node need a `router`.
    router : str
        Its address.
    blocks : int
        ``--num-gpu-blocks-override``; 0: enough.
    ranks : int
        Data parallel ranks, each with an API server, an engine and a worker of its own; see `rank`.
    ports : list of int, optional
        Free ports: for each of `kinds_of_ports` one of each rank.  A restart has to have those of the service
        before.
    environment : mapping, optional
        More of it.
    """

    def __init__(
        self,
        tree: Path,
        folder: Path,
        *,
        plug_in: bool,
        channel: str = "plain",
        namespace: Namespace | None = None,
        draft: bool = False,
        requests: int = 256,
        workers: int = 1,
        parsers: tuple[str, str] = ("", ""),
        says: Mapping[int, str] | None = None,
        experts: tuple[int, int] | None = None,
        multimodal: bool = False,
        role: str = "mixed",
        router: str = "",
        blocks: int = 0,
        ranks: int = 1,
        ports: list[int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.tree, self.folder, self.plug_in, self.channel = Path(tree).resolve(), folder, plug_in, channel
        self.namespace, self.draft, self.requests = namespace, draft, requests
        self.api_processes, self.parsers, self.says = workers, parsers, dict(says or {})
        self.experts, self.multimodal = experts, multimodal
        self.role, self.router, self.ranks = role, router, ranks
        # A node's blocks are memory of this machine: its cache messager makes them.
        self.blocks = blocks or (2000 if role != "mixed" else 4000 if experts else 200000)
        self.ports = ports or free_ports(ranks * len(kinds_of_ports(role)))
        self.more = dict(environment or {})
        self.process: subprocess.Popen | None = None
        self._seen: dict[int, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def port(self, kind: str, rank: int = 0) -> int:
        """A rank's port for one of `kinds_of_ports`."""
        return self.ports[kinds_of_ports(self.role).index(kind) * self.ranks + rank]

    def rank(self, rank: int) -> Rank:
        """One of its data parallel ranks, which is asked as a service is."""
        return Rank(self, rank)

    @property
    def transfer(self) -> Path:
        """What the cache messager of a prefill node does: see the shim's `rdma_comm`."""
        return self.folder / "transfer"

    @property
    def counters(self) -> Path:
        """Where its worker counts steps; see the shim's `gpu_worker`."""
        return self.folder / "counters"

    @property
    def clocks(self) -> Path:
        """A socket where the engine's process tells how long its threads have run."""
        return self.folder / "clocks"

    def start(self) -> None:
        """Start it; `wait` waits until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        make = model.make_multimodal if self.multimodal else model.make
        first, last = make(self.folder / "model", *(self.experts or ()))
        said = {
            place + n: token
            for place, text in self.says.items()
            for n, token in enumerate(model.ids_of(self.folder / "model", text))
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "PYTEST", "COV_"))}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(HERE / "shim"), str(self.tree)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FD_LOG_DIR": str(self.folder / "log"),
            "DO_NOT_TRACK": "1",
            "FD_SERVICE_DIALECT": dialect(self.tree),
            "FD_SERVICE_FIRST_ID": str(first),
            "FD_SERVICE_LAST_ID": str(last),
            "FD_SERVICE_SAYS": json.dumps(said),
            "FD_SERVICE_COUNTERS": str(self.counters),
            "FD_SERVICE_CLOCKS": str(self.clocks),
            "FD_SERVICE_WORKERS_ERRORS": str(self.folder / "worker"),
            "FD_SERVICE_TRANSFER": str(self.transfer),
            # FastDeploy asks no nvidia-smi and no network card then.
            "KVCACHE_GDRCOPY_FLUSH_ENABLE": "0",
            "KVCACHE_RDMA_NICS": "none",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.ranks))),
            "HF_HUB_OFFLINE": "1",
            **({"FD_PLUGINS": "fd_postproc"} if self.plug_in else {}),
            **self.more,
        }
        command = [*(self.namespace.enter if self.namespace else ()), sys.executable, "-W", "ignore"]
        command += self._options()
        with (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )

    def _options(self) -> list[str]:
        """FastDeploy's server with its arguments."""

        def of_all(kind: str) -> str:
            return ",".join(str(self.port(kind, rank)) for rank in range(self.ranks))

        ports = {"port": of_all("api"), "metrics-port": of_all("metrics")}
        if self.ranks > 1:
            command = ["-m", "fastdeploy.entrypoints.openai.multi_api_server", "--num-servers"]
            command += [str(self.ranks), "--ports", ports["port"], "--metrics-ports", ports["metrics-port"]]
            options = [*command, "--args", "--data-parallel-size", str(self.ranks)]
        else:
            options = ["-m", "fastdeploy.entrypoints.openai.api_server"]
            for option, port in ports.items():
                options += [f"--{option}", port]
        # A router reaches nodes at the address of the host's name.
        host = "127.0.0.1" if self.role == "mixed" else "0.0.0.0"
        options += ["--model", str(self.folder / "model"), "--host", host]
        options += ["--engine-worker-queue-port", of_all("tasks"), "--cache-queue-port", of_all("cache")]
        if self.role != "mixed":
            options += ["--splitwise-role", self.role, "--cache-transfer-protocol", "rdma"]
            options += ["--router", self.router, "--pd-comm-port", of_all("connector")]
            options += ["--rdma-comm-ports", of_all("rdma")]
        options += ["--no-enable-prefix-caching", "--num-gpu-blocks-override", str(self.blocks)]
        if self.experts:
            options += ["--routing-replay-config"]
            options += ['{"enable_routing_replay": true, "routing_store_type": "response"}']
        options += ["--workers", str(self.api_processes)]
        options += ["--tensor-parallel-size", "1", "--max-num-seqs", str(self.requests)]
        options += ["--max-model-len", "32768", "--max-concurrency", str(1024 * self.api_processes)]
        for option, parser in zip(("--reasoning-parser", "--tool-call-parser"), self.parsers, strict=True):
            options += [option, parser] if parser else []
        if self.channel.endswith("topk"):
            options += ["--enable-logprob"]
        if self.channel.startswith("spec"):
            config = '{"method": "mtp", "num_speculative_tokens": 2, "num_model_steps": 2, "model": "%s"%s}'
            more = ', "enable_draft_logprob": true' if self.draft else ""
            options += ["--speculative-config", config % (self.folder / "model", more)]
        return options

    def wait(self, seconds: float = 120) -> None:
        """Until it answers.

        Raises
        ------
        NotReady
        """
        urls = [self.rank(rank).url for rank in range(self.ranks)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise NotReady(f"the service ended with {self.process.returncode}: see {self.folder}/out")
            with contextlib.suppress(httpx.HTTPError):
                if all(HTTP.get(f"{url}/health", timeout=5).status_code == 200 for url in urls):
                    return
            time.sleep(0.5)
        raise NotReady(f"no answer within {seconds} s: see {self.folder}/out and {self.folder}/log")

    def metrics(self) -> str:
        """Its metrics page."""
        return HTTP.get(f"http://127.0.0.1:{self.ports[2]}/metrics", timeout=10).text

    def live(self) -> int:
        """Requests of the worker's last step."""
        return Counters(self.counters).read()[1]

    def pace(self, interval: float) -> None:
        """Seconds between the worker's steps; 0: as fast as the queue takes them."""
        Counters(self.counters).pace(interval)

    def workers(self) -> list[int]:
        """Process ids of its stand-in workers, by rank."""
        return self._running("worker_process.py")

    def messagers(self) -> list[int]:
        """Process ids of what moves a node's cache."""
        return self._running("cache_messager.py")

    def _running(self, program: str) -> list[int]:
        commands = {pid: _command(pid) for pid in self.processes()}
        return [pid for pid, command in commands.items() if program in command and "-c" not in command]

    def api_servers(self) -> list[int]:
        """Process ids of what answers HTTP: gunicorn's workers, which name themselves."""
        return [
            pid for pid in self.processes() if _command(pid)[:1] and "gunicorn: worker" in _command(pid)[0]
        ]

    def processes(self) -> list[int]:
        """Its processes: those with its environment, their descendants, and what was one of them before.

        gunicorn writes its name over its environment, and a killed one leaves orphans.
        """
        mark = f"FD_SERVICE_COUNTERS={self.counters}".encode()
        parents, births = {}, {}
        found = {self.process.pid}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    pid = int(entry.name)
                    fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    parents[pid], births[pid] = int(fields[1]), fields[19]
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(pid)
        found |= {pid for pid, birth in self._seen.items() if births.get(pid) == birth}
        before = 0
        while len(found) != before:
            before = len(found)
            found |= {pid for pid, parent in parents.items() if parent in found}
        self._seen = {pid: births[pid] for pid in sorted(found & births.keys())}
        return list(self._seen)

    def transfers(self, seconds: float = 0.0, *, fail: bool = False) -> None:
        """What becomes of a prefill node's transfers from now on: seconds of each, and whether it fails."""
        self.transfer.write_text(json.dumps({"seconds": seconds, "fails": fail}))

    def freeze(self) -> None:
        """``SIGSTOP`` to all of it: an idle node costs nearly half a core."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """``SIGCONT`` to all of it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, pid: int | None = None) -> None:
        """``kill -9`` of one process; the engine's if none is named."""
        self.processes()
        os.kill(pid or self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End all of it, and remove what it leaves: its queue, its sockets and its signals in /dev/shm."""
        if self.process is None:
            return
        everything = self.processes()
        self.thaw()
        for name in (signal.SIGTERM, signal.SIGKILL):
            for pid in everything:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
                if name is signal.SIGTERM:
                    time.sleep(0.2)
        self.process.wait()
        self.clean()

    def clean(self) -> None:
        """Remove what a service that was killed leaves behind."""
        for path in Path("/dev/shm").iterdir():
            if any(str(port) in path.name for port in self.ports):
                with contextlib.suppress(OSError):
                    path.unlink()
        if self.namespace is None:
            from fd_postproc import queues

            ports = [self.port("tasks", rank) for rank in range(self.ranks)]
            for channel, port in itertools.product(CHANNELS, ports):
                with contextlib.suppress(Exception), contextlib.chdir(self.folder):
                    queues.remove_queue(queues.open_queue(queues.locate(channel, port), create=False))

    def dropped(self, user: str) -> int:
        """How many requests of this user lost their first response: see the shim's `connections`."""
        said = rf"the API server did not listen yet for \w+-{re.escape(user)}-[0-9a-f]{{8}}-"
        return len(re.findall(said, (self.folder / "out").read_text(errors="replace")))

    def log(self) -> str:
        """All that its logs hold."""
        files = [self.folder / "out", self.folder / "worker", *sorted((self.folder / "log").rglob("*.log"))]
        return "\n".join(path.read_text(errors="replace") for path in files if path.is_file())

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


UNMENDED = {"FD_POSTPROC_MENDS": "0"}
"""Environment of a service whose answers are to be FastDeploy's own to the byte."""


@contextlib.contextmanager
def running(
    tree: Path, folder: Path, *, limits: Mapping[str, int] = RAISED, seconds: float = 300, **given: Any
) -> Iterator[Service]:
    """A `Service` that answers, in an IPC namespace of its own with these kernel limits."""
    with Namespace(limits) as namespace, Service(tree, folder, namespace=namespace, **given) as service:
        service.wait(seconds)
        yield service


class Rank:
    """A data parallel rank of a service: an API server with an engine of its own."""

    def __init__(self, service: Service, rank: int) -> None:
        self._service, self._rank = service, rank

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._service.port('api', self._rank)}"

    def metrics(self) -> str:
        """Its metrics page."""
        return HTTP.get(
            f"http://127.0.0.1:{self._service.port('metrics', self._rank)}/metrics", timeout=10
        ).text

    def dropped(self, user: str) -> int:
        """See `Service.dropped`."""
        return self._service.dropped(user)


def kinds_of_ports(role: str) -> tuple[str, ...]:
    """What a service of this role listens for, each on a port of its own."""
    return ("api", "tasks", "metrics", "cache", *(() if role == "mixed" else ("connector", "rdma")))


def dialect(tree: Path) -> str:
    """Which headers a tree's engine reads: the packed ones hold a column count."""
    source = (tree / "fastdeploy/output/token_processor.py").read_text()
    return "packed" if ">> 16" in source and ">> 8" in source else "legacy"


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [Path(part).name for part in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    return []
