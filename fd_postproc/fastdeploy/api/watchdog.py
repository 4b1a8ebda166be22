"""The API server's watchdog ends streams and refuses requests when the engine's process is gone.

FastDeploy's API server waits for ever for an engine that was killed.  The watchdog checks the process twice
a second.  An engine that is slow, stopped or busy is alive.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ...support.environment import ENGINE_WATCHDOG, is_on
from ...support.process_stat import KnownProcess
from ..events.code_watch import CodeWatch
from ..events.gauges import export, sweep
from ..events.guard import Guard
from ..events.log import api_log
from ..gate import called, replacements
from ..gate.loading import when_loaded
from ..gate.seams import API, NotPlain
from .connections import RequestMap
from .dispatcher import down_dispatcher
from .engine_process import NoEngine, Unnumbered, listener, socket_file
from .outage import Outage

LOOK_S = 0.5  # between two checks of the engine's process
GRACE_S = 1.0  # after its death, in which the streams still get results that were sent before

SERVING = "fastdeploy.entrypoints.openai."
ANSWERS = {
    "serving_chat": ("OpenAIServingChat", "create_chat_completion"),
    "serving_completion": ("OpenAIServingCompletion", "create_completion"),
    "serving_embedding": ("OpenAIServingEmbedding", "create_embedding"),
    "serving_reward": ("OpenAIServingReward", "create_reward"),
}
"""The class of each module, and its method that answers a request."""

METHODS = ("add_requests", "check_health", "run_control_method")
"""Methods of FastDeploy's engine client that ask the watchdog; 2.4 has no control methods."""

_WATCHDOG = "_fd_postproc_watchdog"  # attribute of FastDeploy's engine client


class EngineGone(Exception):
    """Error for a request that waits for results when the engine is gone."""


class Watchdog(Outage):
    """Watchdog of the engine's process, for one engine client.

    Parameters
    ----------
    client : EngineClient
    path : str
        The engine's socket, to which the client is connected.
    loop : asyncio.AbstractEventLoop
        The loop of the client's requests.
    """

    reason, counter, error = "engine", "engine_gone_requests", EngineGone

    def __init__(self, client: Any, path: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._client, self._path, self._loop = client, path, loop
        self._engine: KnownProcess | Unnumbered | None = None
        self._file: tuple[int, int] | None = None  # the socket's, at the last attempt to find the engine
        self._gone_since: float | None = None
        self._unknown = ""
        self._code = CodeWatch(API, api_log())

    def begin(self) -> None:
        """Check now, and then every `LOOK_S` seconds."""
        export("unhealthy", "reason", "engine", False)
        self._run()

    @property
    def is_gone(self) -> bool:
        """Whether the engine's process is gone."""
        return self._gone_since is not None

    @property
    def text(self) -> str:
        """The error text for clients while the engine is gone."""
        pid = None if self._engine is None else self._engine.pid
        return (
            f"FastDeploy's engine (process {pid}) is gone: it was killed, or has crashed. "
            "This request cannot be answered; ask again when the service is running again."
        )

    def _run(self) -> None:
        try:
            self.look()
            sweep()
            self._code.look()
        except Exception:
            api_log().exception("fd_postproc: the look at the engine's process failed")
        self._loop.call_later(LOOK_S, self._run)

    def look(self) -> None:
        """Check whether the engine is alive, and act on a change."""
        if self._engine is None or self.is_gone:
            self._find()
        elif not self._engine.is_alive():
            self._gone_since = self._loop.time()
            self.has_begun(
                f"process {self._engine.pid} of the engine is gone; streams end with an error, requests are "
                "refused.  Restart the service."
            )
        if self._gone_since is not None and self._loop.time() - self._gone_since >= GRACE_S:
            self.end_streams(self._client.connection_manager.request_map)

    def _find(self) -> None:
        """Identify the engine's process: at the start, and after a restart."""
        file = socket_file(self._path)
        if self.is_gone and file in (None, self._file):
            return  # the socket of the one that is gone, which its children may hold
        try:
            engine = listener(self._path)
        except NoEngine as reason:
            if not self.is_gone and str(reason) != self._unknown:
                self._unknown = str(reason)
                api_log().info(f"fd_postproc: API side cannot tell yet whether the engine lives: {reason}")
            return
        self._file, self._engine = file, engine
        if self._gone_since is None:
            api_log().info(f"fd_postproc: API side watches the engine, process {engine.pid}")
            return
        lasted = self._loop.time() - self._gone_since
        self._gone_since = None
        _reconnect(self._client, self._path)
        self.is_over(f", after {lasted:.1f} s: the engine is back, as process {engine.pid}")


def _reconnect(client: Any, path: str) -> None:
    """Reconnect FastDeploy's sockets.

    An API process that was forked from the engine holds the engine's listening socket.  Its own sockets would
    wait there until the handshake times out: half a minute.
    """
    address = f"ipc://{path}"
    client.zmq_client.socket.disconnect(address)
    client.zmq_client.socket.connect(address)
    for dealer in getattr(client.connection_manager, "connections", ()):
        for endpoint in tuple(dealer.transport.connections()):
            dealer.transport.disconnect(endpoint)
            dealer.transport.connect(endpoint)


def install(module: Any) -> Callable[[], None]:
    """Install the watchdog in the class of ``engine_client``; return a function that restores."""
    if not is_on(ENGINE_WATCHDOG):
        raise NotPlain(f"{ENGINE_WATCHDOG} is off")
    cls = module.EngineClient
    stock = {name: vars(cls)[name] for name in METHODS if name in vars(cls)}
    add, check, control = stock["add_requests"], stock["check_health"], stock.get("run_control_method")
    refusal = module.ParameterError
    if not inspect.iscoroutinefunction(add):
        by, file, line = called.place_of(add)
        raise NotPlain(f"EngineClient.add_requests is no coroutine function: {by} (line {line} of {file})")

    # FastDeploy's own coroutines are what is awaited: its errors have a traceback, and clients read it.
    @functools.wraps(add)
    def add_requests(client: Any, *arguments: Any, **options: Any) -> Any:
        watchdog = _gone_watchdog(client)
        if watchdog is not None:
            return refuse(watchdog)
        _expect(client, *arguments)
        return add(client, *arguments, **options)

    async def refuse(watchdog: Outage) -> None:
        watchdog.count("refused")
        raise refusal(None, watchdog.text)

    @functools.wraps(check)
    def check_health(client: Any, *arguments: Any, **options: Any) -> Any:
        watchdog = _gone_watchdog(client)
        return check(client, *arguments, **options) if watchdog is None else (False, watchdog.text)

    def run_control_method(client: Any, request: Any) -> Any:
        watchdog = _gone_watchdog(client)
        return control(client, request) if watchdog is None else refuse_control(watchdog, request)  # type: ignore[misc]

    async def refuse_control(watchdog: Outage, request: Any) -> Any:
        watchdog.count("refused")
        return module.ControlResponse(request.request_id, 500, watchdog.text)

    ours = {"add_requests": add_requests, "check_health": check_health}
    if control is not None:
        ours["run_control_method"] = functools.wraps(control)(run_control_method)
    for name, (owner, method) in ANSWERS.items():
        when_loaded(SERVING + name, functools.partial(_answer_in_words, owner, method))
    return replacements.install("api watchdog", *((cls, name, method) for name, method in ours.items()))


def watch(client: Any) -> None:
    """Start the watchdog of a client that was just connected, in an event loop; never raises."""
    try:
        path = getattr(client.zmq_client, "file_name", None)
        if isinstance(path, str) and getattr(client, _WATCHDOG, None) is None:
            watchdog = Watchdog(client, path, asyncio.get_running_loop())
            setattr(client, _WATCHDOG, watchdog)
            watchdog.begin()
    except Exception as error:
        _guard.failed(error)


_guard = Guard("api watchdog", api_log, most=None)  # FastDeploy's own run in any case


def _gone_watchdog(client: Any) -> Outage | None:
    """Who says why a client's requests get no results: its engine is gone, or its dispatcher down."""
    try:
        watchdog: Watchdog | None = getattr(client, "__dict__", {}).get(_WATCHDOG)
        return watchdog if watchdog is not None and watchdog.is_gone else down_dispatcher(client)
    except Exception as error:
        _guard.failed(error)
        return None


def _expect(client: Any, task: Any = None, *_: Any) -> None:
    """Announce to our map of requests one that is about to be sent."""
    try:
        requests = getattr(getattr(client, "connection_manager", None), "request_map", None)
        name = task.get("request_id") if type(task) is dict else None
        if isinstance(requests, RequestMap) and isinstance(name, str):
            requests.expect(name)
    except Exception as error:
        _guard.failed(error)


def _answer_in_words(owner: str, method: str, module: Any) -> None:
    """Have a serving class report that the engine is gone.

    FastDeploy's answers that are not streamed hide an error of the engine, or add a traceback to it.
    """
    cls = getattr(module, owner, None)
    stock = vars(cls or object).get(method)
    if not inspect.iscoroutinefunction(stock):
        return

    @functools.wraps(stock)
    async def create(handler: Any, *arguments: Any, **options: Any) -> Any:
        try:
            answer = await stock(handler, *arguments, **options)
        except Exception:
            watchdog = _gone_watchdog(getattr(handler, "engine_client", None))
            if watchdog is None:
                raise
            fastapi = importlib.import_module("fastapi")
            raise fastapi.HTTPException(status_code=503, detail=watchdog.text) from None
        watchdog = _gone_watchdog(getattr(handler, "engine_client", None))
        try:
            if watchdog is None or not _hides(answer, watchdog.text):
                return answer
            return in_words(watchdog.text)
        except Exception as error:
            _guard.failed(error)
            return answer

    def in_words(text: str) -> Any:
        protocol = importlib.import_module(SERVING + "protocol")
        kind = importlib.import_module("fastdeploy.utils").ErrorType.INTERNAL_ERROR
        return protocol.ErrorResponse(error=protocol.ErrorInfo(message=text, type=kind))

    replacements.install("api watchdog", (cls, method, create))


def _hides(answer: Any, text: str) -> bool:
    """Whether FastDeploy lost the error, or put it into a longer one."""
    return answer is None or text in getattr(getattr(answer, "error", None), "message", "")
