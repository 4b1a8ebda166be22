"""The API process's dispatcher goes on after an error, and says so where it cannot.

FastDeploy's dispatcher ends for good after five exceptions in a row, or one OSError: every stream of the
process stands still, and nothing notices.  Where its code is known, the loop is ours, which skips and counts
what cannot be read.  Elsewhere FastDeploy's own coroutine is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any

from ...ops.log_throttle import Backoff, Complaints
from ..events.counters import count
from ..events.gauges import export
from ..events.log import api_log
from ..gate import replacements
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from .outage import Outage

TRIES = 6  # for a message that does not fit into memory, within about a second
DOWN_S = 5.0  # after the last fault that has ended streams, in which requests are refused
SHORT_S = 1.0  # a run of FastDeploy's coroutine that is shorter has not worked
SHORT_RUNS = 5  # so many in a row mean that it cannot work
BIND_S = 0.1  # after a bind: the end of the socket before may remove the new one's file

COROUTINES = ("_dispatch_batch_responses", "_listen_connection")
"""FastDeploy's coroutines that receive results: in batches, and request by request (2.5)."""

_DISPATCHER = "_fd_postproc_dispatcher"  # attribute of FastDeploy's connection manager


class DispatcherDown(Exception):
    """Error for a request whose results cannot be received."""


class Dispatcher(Outage):
    """State of a connection manager's dispatcher: whether it is down, and its loop.

    Parameters
    ----------
    manager : DealerConnectionManager
    module : module
        FastDeploy's ``openai.utils``, whose names are looked up at each use.
    """

    reason, counter, error = "dispatcher", "dispatcher_down_requests", DispatcherDown

    def __init__(self, manager: Any, module: Any) -> None:
        super().__init__()
        self._manager, self._module = manager, module
        self._loop = asyncio.get_running_loop()
        self._alarm_ends = self._down_ends = 0.0
        self._reason = ""
        export("unhealthy", "reason", "dispatcher", False)

    @property
    def is_down(self) -> bool:
        """Whether results cannot be received, or could not a moment ago."""
        return self._loop.time() < self._down_ends

    @property
    def text(self) -> str:
        """The error text for clients whose results may be lost."""
        return (
            f"FastDeploy's API server (process {os.getpid()}) cannot receive results: {self._reason}. "
            "This request cannot be answered; send it again."
        )

    def go_down(self, reason: str) -> None:
        """End every stream that waits, since its results may be lost; refuse requests for a while."""
        self._reason, self._down_ends = reason, self._loop.time() + DOWN_S
        self._alarm(f"{reason}; streams end with an error, requests are refused")
        self.end_streams(self._manager.request_map)

    def _alarm(self, text: str) -> None:
        """Set the gauge, until `DOWN_S` after the last alarm."""
        if not self._alarm_ends:
            self.has_begun(text)
            self._loop.call_later(DOWN_S, self._end_alarm)
        self._alarm_ends = self._loop.time() + DOWN_S

    def _end_alarm(self) -> None:
        rest = self._alarm_ends - self._loop.time()
        if rest > 0:
            self._loop.call_later(rest, self._end_alarm)
            return
        self._alarm_ends = 0.0
        self.is_over(": the dispatcher receives results")

    # ---- our loop, instead of FastDeploy's

    async def run(self) -> None:
        """Read messages and hand out their groups, as long as the manager runs.

        aiozmq's stream returns messages without a turn of the event loop while there are more.  If the engine
        is faster than this process, no client would get another chunk: so each message waits for a turn.
        """
        manager, pauses = self._manager, Backoff()
        while manager.running:
            await asyncio.sleep(0)
            try:
                message = (await manager.pull_client.read())[-1]
            except Exception as error:
                if manager.running:
                    _fault("stream", f"the stream of results cannot be read: {error!r}")
                    await self._renew(error, pauses)
                continue
            batch = await self._unpack(message)
            self._record()
            for group in batch:
                self._hand_out(group)

    async def _unpack(self, message: Any) -> list[Any]:
        """Groups of a message; none if it cannot be read, which is counted."""
        pauses = Backoff(first=0.05)
        for _ in range(TRIES):
            try:
                batch = self._module.msgpack.unpackb(message)
            except MemoryError:
                _fault("memory", f"no memory to unpack a message of {len(message):,} bytes")
                await asyncio.sleep(pauses.failed())
                continue
            except Exception as error:
                why = repr(error)
            else:
                if isinstance(batch, list):
                    return batch
                why = f"it is of the type {type(batch).__name__}"
            _fault("message", f"a message is skipped, {why}: {_described(message)}")
            return []
        self.go_down(f"there is no memory for a message of {len(message):,} bytes")
        return []

    def _record(self) -> None:
        stats = self._module.ZMQMetricsStats()
        stats.msg_recv_total += 1
        self._module.main_process_metrics.record_zmq_stats(stats, self._manager.pull_metrics_address)

    def _hand_out(self, group: Any) -> None:
        """Put a group of results into its request's queue, by FastDeploy's rules."""
        try:
            last = group[-1]
            name = last["request_id"] if isinstance(last, dict) else last.request_id
            if name.startswith(("cmpl", "embd", "reward", "chatcmpl")):
                base = getattr(self._module, "get_base_request_id", None)
                name = name.rsplit("_", 1)[0] if base is None else base(name)
            queue = self._manager.request_map.get(name)
            if queue is not None:
                queue.put_nowait(group)
        except Exception as error:
            _fault("group", f"a group of results is skipped: {error!r}")

    async def _renew(self, error: Exception, pauses: Backoff) -> None:
        """Open the stream anew, where the engine's socket finds it by its path; streams end first."""
        manager, module = self._manager, self._module
        self.go_down(f"the stream of results was closed ({type(error).__name__})")
        await asyncio.sleep(pauses.failed())
        path = manager.pull_ipc_path
        with contextlib.suppress(Exception):  # aiozmq's stream has no transport where that has been lost
            manager.pull_client.close()
        try:
            await asyncio.sleep(BIND_S)
            stream = await module.aiozmq.create_zmq_stream(module.zmq.PULL, bind=f"ipc://{path}")
            manager.pull_client = stream
            await asyncio.sleep(BIND_S)
            if not os.path.exists(path):
                stream.close()
        except Exception as again:
            _fault("stream", f"{path} cannot be opened: {again!r}")

    # ---- FastDeploy's own coroutine, started again

    async def repeat(self, coroutine: Callable[[], Any]) -> None:
        """Run FastDeploy's coroutine again whenever it ends while the manager runs."""
        pauses, runs = Backoff(first=0.05), 0
        while self._manager.running:
            began, why = self._loop.time(), "it has returned"
            try:
                await coroutine()
            except Exception as error:
                why = repr(error)
            if not self._manager.running:
                return
            _fault("restart", f"FastDeploy's own has ended and is started again ({why})")
            self._alarm("FastDeploy's dispatcher has ended, and is started again")
            runs = runs + 1 if self._loop.time() - began < SHORT_S else 1
            if runs >= SHORT_RUNS:
                self.go_down("FastDeploy's dispatcher ends at once, again and again")
            await asyncio.sleep(pauses.failed())


class _BestEffortMetrics:
    """Stand-in for FastDeploy's metrics in ``openai.utils``: a sample that fails costs no message."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def record_zmq_stats(self, *arguments: Any, **options: Any) -> None:
        try:
            self._stock.record_zmq_stats(*arguments, **options)
        except Exception as error:  # such as a full disk behind the metrics file
            _fault("metrics", f"a message is not in FastDeploy's metrics: {error!r}")


_complaints = Complaints(lambda text: api_log().error(f"fd_postproc: dispatcher: {text}"))


def _fault(kind: str, text: str | Callable[[], str]) -> None:
    """Count a fault after which the dispatcher goes on, and log it, throttled."""
    count("api_dispatcher_faults", kind)
    _complaints.tell(kind, text)


def _described(message: Any) -> str:
    """A message in words without its content, which is a user's: length, and a digest of its beginning."""
    digest = hashlib.blake2b(bytes(message[:64]), digest_size=6).hexdigest()
    return f"{len(message):,} bytes, digest of the first 64: {digest}"


# ---- Installation ------------------------------------------------------------------------------------------


def install(module: Any) -> Callable[[], None]:
    """Install the loop, or the restarts, in ``openai.utils``; return a function that restores."""
    cls = module.DealerConnectionManager
    stock = {name: vars(cls)[name] for name in COROUTINES if name in vars(cls)}
    if not stock:
        raise NotPlain(f"this FastDeploy has none of {', '.join(COROUTINES)}")
    changes: list[tuple[Any, str, Any]] = [
        (module, "main_process_metrics", _BestEffortMetrics(module.main_process_metrics))
    ]
    for name, coroutine in stock.items():
        is_ours = name == COROUTINES[0] and gate.judge("api connections", module).reason is None
        changes.append((cls, name, _replacement(module, coroutine, is_ours)))
    return replacements.install("api dispatcher", *changes)


def _replacement(module: Any, stock: Any, is_ours: bool) -> Any:
    @functools.wraps(stock)
    async def receive(manager: Any, *arguments: Any) -> None:
        dispatcher = getattr(manager, _DISPATCHER, None)
        if dispatcher is None:
            dispatcher = Dispatcher(manager, module)
            setattr(manager, _DISPATCHER, dispatcher)
        if is_ours:
            await dispatcher.run()
        else:
            await dispatcher.repeat(functools.partial(stock, manager, *arguments))

    return receive


def down_dispatcher(client: Any) -> Dispatcher | None:
    """The dispatcher of an engine client if it is down, else None."""
    manager = getattr(client, "connection_manager", None)
    # Its own attribute: a test's stand-in for a manager has any that is asked for.
    dispatcher: Dispatcher | None = getattr(manager, "__dict__", {}).get(_DISPATCHER)
    return dispatcher if dispatcher is not None and dispatcher.is_down else None
