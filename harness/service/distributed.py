"""Prefill and decode nodes behind FastDeploy's router, on one machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from .cases import quiet, until
from .namespace import Namespace
from .server import HTTP, Service, free_ports

READY = 600.0
"""Seconds until four nodes answer on a busy machine; two on a quiet one need 86."""


class Router:
    """FastDeploy's router of a source tree."""

    def __init__(self, tree: Path, folder: Path, port: int) -> None:
        self.tree, self.folder, self.port = Path(tree).resolve(), folder, port
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FD_")}
        shim = Path(__file__).resolve().parent / "shim"
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(shim), str(self.tree)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FD_LOG_DIR": str(self.folder / "log"),
            "DO_NOT_TRACK": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "fastdeploy.router.launch"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--splitwise"]
        with (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )
        if not until(self._answers, 120):
            raise TimeoutError(f"the router does not answer: see {self.folder}/out")

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise ChildProcessError(f"the router ended with {self.process.returncode}: see {self.folder}/out")
        with contextlib.suppress(httpx.HTTPError):
            return HTTP.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def knows(self) -> dict[str, int]:
        """How many nodes of each role are registered."""
        with contextlib.suppress(httpx.HTTPError):
            return HTTP.get(f"{self.url}/registered_number", timeout=5).json()
        return {}

    def stop(self) -> None:
        """End it; a new one on its port knows the nodes that are not frozen within seconds."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Pair:
    """A prefill node, a decode node and the router before them; it is asked as a service is."""

    def __init__(self, router: Router, prefill: Service, decode: Service) -> None:
        self.router, self.prefill, self.decode = router, prefill, decode

    @property
    def nodes(self) -> tuple[Service, Service]:
        return self.prefill, self.decode

    @property
    def url(self) -> str:
        return self.router.url

    def metrics(self) -> str:
        """The decode node's page: its requests run until a client has its answer."""
        return self.decode.metrics()

    def dropped(self, user: str) -> int:
        """How many requests lost their first response; the router names them, so whose is unknown."""
        return sum("the API server did not listen yet for" in line for line in self._out())

    def _out(self) -> list[str]:
        return (self.decode.folder / "out").read_text(errors="replace").splitlines()

    def wait(self, seconds: float = READY) -> None:
        """Until the router knows both nodes."""
        wanted = {"mixed": 0, "prefill": 1, "decode": 1}
        if not until(lambda: self.router.knows() == wanted, seconds):
            raise TimeoutError(f"the router knows {self.router.knows()}: see {self.router.folder}")

    def quiet(self, seconds: float = 60) -> bool:
        """Whether nothing runs on either node any more."""
        return all(quiet(node, seconds) for node in self.nodes)


class Nodes:
    """Prefill and decode nodes with the plug-in and without it, of which two are asked at a time.

    Parameters
    ----------
    tree, folder : Path
    namespace : Namespace
    ways : list of (bool, bool)
        Whether the plug-in is on the prefill node and on the decode node; those that occur are started.
    channel, draft, more
        As of `Service`.
    """

    def __init__(
        self,
        tree: Path,
        folder: Path,
        namespace: Namespace,
        ways: list[tuple[bool, bool]],
        *,
        channel: str,
        draft: bool = False,
        requests: int = 32,
        **more: Any,
    ) -> None:
        self.router = Router(tree, folder / "router", free_ports(1)[0])
        self.nodes = {
            (role, plug_in): Service(
                tree, folder / f"{role}-{'on' if plug_in else 'off'}", plug_in=plug_in, channel=channel,
                draft=draft, namespace=namespace, requests=requests, role=role, router=self.router.url,
                **more,
            )
            for role, place in (("prefill", 0), ("decode", 1))
            for plug_in in sorted({way[place] for way in ways})
        }  # fmt: skip

    def start(self) -> None:
        """Start all, one on each core at a time: more take longer; each is frozen once it answers."""

        def one(node: Service) -> None:
            node.start()
            node.wait(READY)
            node.freeze()

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, self.nodes.values()))

    @contextlib.contextmanager
    def pair(self, prefill: bool, decode: bool) -> Iterator[Pair]:
        """The two nodes with the plug-in or without it; all others are frozen."""
        pair = Pair(self.router, self.nodes["prefill", prefill], self.nodes["decode", decode])
        for node in self.nodes.values():
            node.thaw() if node in pair.nodes else node.freeze()
        self.router.start()
        try:
            pair.wait()
            yield pair
        finally:
            self.router.stop()
            for node in pair.nodes:
                node.freeze()

    def restart(self, node: Service, beside: Service) -> None:
        """Another node in its place, on its ports; the one `beside` it is frozen until it answers."""
        beside.freeze()
        node.stop()
        node.start()
        node.wait(READY)
        beside.thaw()

    def stop(self) -> None:
        """End all of it."""
        self.router.stop()
        for node in self.nodes.values():
            node.stop()

    def __enter__(self) -> Nodes:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
