"""Results that reach the API server before their request waits for them are kept.

FastDeploy sends a request to the engine first and registers the queue for its results afterwards.  It drops
a result that comes in between without a word, and the client waits forever: where the first token comes at
once, about one request in a hundred.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ...support.environment import GC, is_on
from ..array_readers import announce
from ..events.counters import note
from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements

MOST_HELD = 4096  # early groups of results, over all requests
MOST_BYTES = 64 << 20  # of their memory, the ids of their requests included
KEEP_EARLY_S = 60.0  # after which an early group is dropped
MOST_GONE = 4096  # ended requests that are remembered, whose late results are dropped

TOO_MANY = f"early results were dropped, there were more than {MOST_HELD:,} groups of them"
TOO_LARGE = f"early results were dropped, they took more than {MOST_BYTES >> 20} MiB"
FAILED = "early results were dropped, holding them failed"
TOO_OLD = f"early results were dropped, their request was not registered within {KEEP_EARLY_S:.0f} s"


class ResultsDropped(Exception):
    """Error for a request whose early results were dropped."""


class NoResults(list):  # type: ignore[type-arg]
    """Group of results that raises when it is read; FastDeploy reports that error to the client."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __iter__(self) -> Any:
        raise self.error

    def __getitem__(self, index: Any) -> Any:
        raise self.error


class Inbox:
    """The results of a stream that may take the steady lane (`lane`), in place of FastDeploy's queue.

    It refers to no generator: a stream whose client has left is cleaned up at once, not by the collector.

    Attributes
    ----------
    results : deque
        Results one by one, and groups that are no lists, as `NoResults`.
    """

    def __init__(self) -> None:
        self.results: deque[Any] = deque()
        self.loop = asyncio.get_running_loop()
        self._waiter: Any = None
        self._seen: Any = None  # the waiter at the last look
        self._is_silent = False

    def put_nowait(self, group: Any) -> None:
        """Take a group of results from the dispatcher, or from the watchdog."""
        if type(group) is list:
            self.results.extend(group)
        else:
            self.results.append(group)
        self._wake()

    def empty(self) -> bool:
        """Whether there are no results."""
        return not self.results

    async def get(self) -> Any:
        """Wait for the next result, as a group of one; or for a group that is no list."""
        while not self.results:
            await self.wait()
        result = self.results.popleft()
        return result if isinstance(result, NoResults) else [result]

    async def wait(self) -> bool:
        """Wait for results; True if none have come for a while."""
        self._is_silent = False
        waiter = self._waiter = self.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
        return self._is_silent

    def look(self) -> None:
        """End a wait that lasts since the last look."""
        if self._waiter is not None and self._waiter is self._seen:
            self._is_silent = True
            self._wake()
        self._seen = self._waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


registering: ContextVar[Any] = ContextVar("fd_postproc_registering", default=None)
"""The feed of the stream whose generator registers next in this task, and waits at the feed then."""


class _Held:
    """The early results of one request."""

    def __init__(self, since: float) -> None:
        self.since, self.size = since, 0
        self.groups: list[Any] = []


class RequestMap(dict):  # type: ignore[type-arg]
    """Map from a request's id to the queue that its generator waits at, instead of FastDeploy's.

    The dispatcher calls ``get`` for each group of results.  For an id that was never registered it returns a
    queue that holds the groups.  It holds the beginning of an answer only: the first result, and what follows
    a first result that is held.

    Above `MOST_BYTES` the request with the most bytes loses its early results, above `MOST_HELD` the oldest
    request does.  It ends with an error as soon as it is registered.

    Of a request that has ended, late results are dropped, until its id is used again: a request of that id
    was sent (`expect`), or an answer begins although the ended request's had begun before.

    A client chooses its id, of any length.  So only FastDeploy's own entries and `held` have ids: the other
    tables have their hashes, which each look into a map has made already.
    """

    def __init__(self, registered: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(registered)
        self.clock = clock
        self.held: OrderedDict[str, _Held] = OrderedDict()  # early results by request
        self.groups = self.size = 0  # that are held, and the bytes of memory that they take
        # Requests that have lost their early results: when, and why.
        self.dropped: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self.begun: set[int] = set()  # registered requests that have had a result
        self.gone: OrderedDict[int, bool] = OrderedDict()  # requests that have ended: whether they had one
        self.guard = Guard("api connections", api_log)

    def get(self, name: str, default: Any = None) -> Any:
        queue = super().get(name)
        if queue is not None:
            self.begun.add(hash(name))
            return queue
        return _Early(self, name) if default is None and self.guard.is_on else default

    def __setitem__(self, name: str, queue: Any) -> None:
        super().__setitem__(name, queue)
        try:
            self._register(name, queue)
        except Exception as error:  # the request itself is registered
            self.guard.failed(error)

    def _register(self, name: str, queue: Any) -> None:
        self.gone.pop(hash(name), None)
        self.begun.discard(hash(name))
        if name in self.held:
            self.begun.add(hash(name))
            for group in self._release(name):
                queue.put_nowait(group)
        why = self._why_lost(name, self.clock())
        self.dropped.pop(hash(name), None)
        if why:
            text = f"{why}; this request has lost its own and ends here: send it again"
            queue.put_nowait(NoResults(ResultsDropped(text)))

    def expect(self, name: str) -> None:
        """Note that a request is on its way to the engine: results of its id are no ended request's any more.

        FastDeploy's ids of choices end in ``_0``, ``_1``, ...; its map has what stands before that.
        """
        self.gone.pop(hash(name), None)
        self.gone.pop(hash(name.rpartition("_")[0]), None)

    def give_inbox(self, name: str, inbox: Inbox) -> Inbox:
        """Put an inbox in the place of a registered request's queue, with what that holds."""
        queue = self[name]
        while not queue.empty():
            inbox.put_nowait(queue.get_nowait())
        super().__setitem__(name, inbox)  # it stays the same request
        return inbox

    def pop(self, name: str, *default: Any) -> Any:
        _remember(self.gone, name, hash(name) in self.begun)
        self.begun.discard(hash(name))
        return super().pop(name, *default)

    def clear(self) -> None:
        super().clear()
        self.held.clear()
        self.dropped.clear()
        self.begun.clear()
        self.groups = self.size = 0

    def hold(self, name: str, group: Any) -> None:
        """Hold a group of results of an id that is not registered; never raises.

        A request that loses its group by a failure ends with an error, as soon as it is registered.
        """
        try:
            self._hold(name, group)
            self.guard.worked()
        except Exception as error:
            self.guard.failed(error)
            with contextlib.suppress(Exception):
                if hash(name) not in self.gone:
                    self._lose(name, self.clock(), FAILED)

    def _hold(self, name: str, group: Any) -> None:
        now, number = self.clock(), hash(name)
        if number in self.gone:
            if not _begins(group):
                return
            if not self.gone[number]:  # it is the ended request's own
                self.gone[number] = True
                return
            del self.gone[number]
        while self.held and now - next(iter(self.held.values())).since >= KEEP_EARLY_S:
            self._release(next(iter(self.held)))
            note(TOO_OLD)
        if name not in self.held:
            if self._why_lost(name, now) or not _begins(group):
                return
            self.held[name] = _Held(now)
            note("results came before their request was registered, and were kept")
        request, size = self.held[name], _memory_of(group, MOST_BYTES)
        if not request.groups:
            size += sys.getsizeof(name)
        request.groups.append(group)
        request.size += size
        self.groups += 1
        self.size += size
        while self.size > MOST_BYTES:
            self._drop(max(self.held, key=lambda one: self.held[one].size), now, TOO_LARGE)
        while self.groups > MOST_HELD:
            self._drop(next(iter(self.held)), now, TOO_MANY)

    def _release(self, name: str) -> list[Any]:
        request = self.held.pop(name)
        self.groups -= len(request.groups)
        self.size -= request.size
        return request.groups

    def _drop(self, name: str, now: float, why: str) -> None:
        self._release(name)
        self._lose(name, now, why)

    def _why_lost(self, name: str, now: float) -> str:
        """Why early results of a request were lost; empty if none were, or those of an earlier one."""
        since, why = self.dropped.get(hash(name), (0.0, ""))
        return why if now - since < KEEP_EARLY_S else ""

    def _lose(self, name: str, now: float, why: str) -> None:
        _remember(self.dropped, name, (now, why))
        note(why)


class _Early:
    """Replacement for a queue that does not exist yet."""

    def __init__(self, requests: RequestMap, name: str) -> None:
        self.requests, self.name = requests, name

    def put_nowait(self, group: Any) -> None:
        self.requests.hold(self.name, group)


def _remember(names: OrderedDict[int, Any], name: str, value: Any) -> None:
    names[hash(name)] = value
    if len(names) > MOST_GONE:
        names.popitem(last=False)


def _memory_of(group: Any, most: int) -> int:
    """Bytes of a group's lists, maps, texts and numbers; counting stops above `most`."""
    size, values = 0, [group]
    while values and size <= most:
        value = values.pop()
        size += sys.getsizeof(value)
        if type(value) is dict:
            values += value.values()  # keys are the same strings everywhere
        elif type(value) is list:
            values += value
    return size


def _begins(group: Any) -> bool:
    """Whether a group begins an answer: its first tokens, or an error in place of an answer."""
    if not (isinstance(group, list) and group and isinstance(group[0], dict)):
        return False
    first = group[0]
    if first.get("error_code", 200) != 200:
        return True
    outputs = first.get("outputs")
    return isinstance(outputs, dict) and outputs.get("send_idx") == 0


def install(module: Any) -> Callable[[], None]:
    """Install our map in the connection manager of ``openai.utils``; return a function that restores.

    Once the manager is initialised, the server is about to serve: then the garbage collector forgets what is
    there.  Without a dispatcher, results come one by one after their request was registered, and FastDeploy's
    map stays.
    """
    cls, guard = module.DealerConnectionManager, Guard("api connections", api_log)
    stock_init, stock_initialize = cls.__init__, cls.initialize
    connection = cls, "get_connection", with_inboxes(cls.get_connection, guard)
    if not hasattr(cls, "_dispatch_batch_responses"):
        return replacements.install("api connections", connection)

    @functools.wraps(stock_init)
    def __init__(manager: Any, *arguments: Any, **options: Any) -> None:
        stock_init(manager, *arguments, **options)
        try:
            if guard.is_on and type(getattr(manager, "request_map", None)) is dict:
                manager.request_map = RequestMap(manager.request_map)
        except Exception as error:
            guard.failed(error)

    @functools.wraps(stock_initialize)
    async def initialize(manager: Any, *arguments: Any, **options: Any) -> Any:
        outcome = await stock_initialize(manager, *arguments, **options)
        try:
            tell_of_arrays(manager, module)
            freeze()
        except Exception as error:
            guard.failed(error)
        return outcome

    return replacements.install(
        "api connections",
        *((cls, "__init__", __init__), (cls, "initialize", initialize), connection),
    )


def with_inboxes(stock: Any, guard: Guard) -> Any:
    """A ``get_connection`` that gives a stream's feed to its generator, and a lane's inbox to the map."""

    @functools.wraps(stock)
    async def get_connection(manager: Any, request_id: str, *arguments: Any, **options: Any) -> Any:
        dealer, queue = await stock(manager, request_id, *arguments, **options)
        feed = registering.get()
        if feed is None:
            return dealer, queue
        registering.set(None)
        try:
            if feed.name == request_id and guard.is_on:
                if dealer is not None or type(manager.request_map) is not RequestMap:
                    feed.choices = {}  # no lane: results come in another way
                if not feed.choices:
                    feed.source = queue
                elif isinstance(feed, Inbox):  # a whole answer's
                    manager.request_map.give_inbox(request_id, feed)
                else:
                    feed.source = manager.request_map.give_inbox(request_id, Inbox())
                return dealer, feed
        except Exception as error:
            guard.failed(error)
        return dealer, queue

    return get_connection


def tell_of_arrays(manager: Any, module: Any) -> None:
    """Let the engine send arrays as one value if our msgpack unpacks its messages."""
    path = getattr(manager, "pull_ipc_path", None)
    if type(path) is str and getattr(vars(module).get("msgpack"), "reads_arrays", False):
        manager.fd_postproc_arrays = announce(path)


RESULTS_A_COLLECTION = 4096
"""Number of results after which the garbage collector runs; each is a few lists and maps."""


def freeze() -> None:
    """Collect the young objects and freeze all, unless ``FD_POSTPROC_GC`` is ``off``.

    Half a million objects of Paddle and FastDeploy live as long as the process: collections took a fourth of
    an API server's time.  With Python's own threshold there are two a step, while all of its results live.
    A threshold that was changed already stays.
    """
    if is_on(GC):
        gc.collect(1)  # the oldest objects have no garbage among them worth half a second
        gc.freeze()
        first, *others = gc.get_threshold()
        if 0 < first <= 2000:  # Python's own: 700, and 2000 from 3.13 on
            gc.set_threshold(5 * RESULTS_A_COLLECTION, *others)
