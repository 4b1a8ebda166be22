"""Results that reach the API server before their request waits for them.

FastDeploy sends a request to the engine first and registers the queue for its results afterwards.  A result
that comes in between is dropped without a word, and the client waits forever: where the first token comes at
once, about one request in a hundred.  Here such a result is kept until the queue is there.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...environment import GC
from ._chunks import note
from .plans import NotPlain

UTILS = "fastdeploy.entrypoints.openai.utils"

MOST_HELD = 4096
"""Groups of results that are kept at most, of all requests together."""

PATIENCE = 60.0
"""Seconds that one is kept."""

MOST_GONE = 4096
"""Requests that are remembered as over: what still comes for them is nobody's."""


class RequestMap(dict):  # type: ignore[type-arg]
    """FastDeploy's map from a request's id to the queue that its generator waits at.

    The dispatcher asks it with ``get`` for each group of results.  For an id that is not registered, and has
    not been before, it gives a queue that keeps what it is given.  Only the beginning of an answer is kept:
    its first result, and what comes after a first result that was kept.
    """

    def __init__(self, registered: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(registered)
        self.clock = clock
        self.held: OrderedDict[str, tuple[float, list[Any]]] = OrderedDict()
        self.groups = 0
        self.gone: OrderedDict[str, None] = OrderedDict()

    def get(self, name: str, default: Any = None) -> Any:
        queue = super().get(name)
        if queue is not None:
            return queue
        return default if default is not None or name in self.gone else _Early(self, name)

    def __setitem__(self, name: str, queue: Any) -> None:
        super().__setitem__(name, queue)
        self.gone.pop(name, None)
        _, groups = self.held.pop(name, (0.0, ()))
        self.groups -= len(groups)
        for group in groups:
            queue.put_nowait(group)

    def pop(self, name: str, *default: Any) -> Any:
        self.gone[name] = None
        if len(self.gone) > MOST_GONE:
            self.gone.popitem(last=False)
        return super().pop(name, *default)

    def clear(self) -> None:
        super().clear()
        self.held.clear()
        self.groups = 0

    def hold(self, name: str, group: Any) -> None:
        """Keep a group of results of an id that is not registered."""
        now = self.clock()
        while self.held:
            oldest = next(iter(self.held))
            since, groups = self.held[oldest]
            if now - since < PATIENCE and self.groups < MOST_HELD:
                break
            del self.held[oldest]
            self.groups -= len(groups)
            note("results that nobody came to wait for were dropped")
        if name not in self.held:
            if not _begins(group):
                return
            self.held[name] = (now, [])
            note("results came before their request was registered, and were kept")
        self.held[name][1].append(group)
        self.groups += 1


class _Early:
    """Takes the place of a queue that is not there yet."""

    def __init__(self, requests: RequestMap, name: str) -> None:
        self.requests, self.name = requests, name

    def put_nowait(self, group: Any) -> None:
        self.requests.hold(self.name, group)


def _begins(group: Any) -> bool:
    """Whether an answer begins with a group: its first tokens, or an error instead of an answer."""
    if not (isinstance(group, list) and group and isinstance(group[0], dict)):
        return False
    first = group[0]
    if first.get("error_code", 200) != 200:
        return True
    outputs = first.get("outputs")
    return isinstance(outputs, dict) and outputs.get("send_idx") == 0


def install(module: Any) -> Callable[[], None]:
    """Give FastDeploy's connection manager our map; a function that undoes it.

    Also, once it has been initialised - the server is about to serve - the dispatcher is made to take turns
    with the streams, and what is there by then is taken out of the garbage collector's sight.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.openai.utils``.

    Raises
    ------
    NotPlain
        If its dispatcher does not look its queues up as it is known to.
    """
    cls = module.DealerConnectionManager
    stock_init, stock_initialize = cls.__init__, cls.initialize
    dispatch = getattr(cls, "_dispatch_batch_responses", None)
    if dispatch is None:
        raise NotPlain("results come one by one here, after their request was registered")
    if not {"request_map", "get", "put_nowait"} <= set(dispatch.__code__.co_names):
        raise NotPlain("its dispatcher looks the queues up in another way")

    @functools.wraps(stock_init)
    def __init__(manager: Any, *arguments: Any, **options: Any) -> None:
        stock_init(manager, *arguments, **options)
        if type(getattr(manager, "request_map", None)) is dict:
            manager.request_map = RequestMap(manager.request_map)

    @functools.wraps(stock_initialize)
    async def initialize(manager: Any, *arguments: Any, **options: Any) -> Any:
        made = await stock_initialize(manager, *arguments, **options)
        take_turns(getattr(manager, "pull_client", None))
        freeze()
        return made

    cls.__init__, cls.initialize = __init__, initialize

    def restore() -> None:
        cls.__init__, cls.initialize = stock_init, stock_initialize

    return restore


def take_turns(stream: Any) -> None:
    """Let others run before each message that the dispatcher reads.

    aiozmq's stream has the next message at once while there are more, without a turn of the event loop.
    Where the engine is faster than this process, the dispatcher then never waits: it took all of the CPU
    time, and no client got another chunk.
    """
    stock = getattr(stream, "read", None)
    if not asyncio.iscoroutinefunction(stock) or "read" in getattr(stream, "__dict__", {"read": None}):
        return

    async def read() -> Any:
        await asyncio.sleep(0)
        return await stock()

    stream.read = read


RESULTS_A_COLLECTION = 4096
"""How many results may come until the collector looks for cycles: each is a handful of lists and maps."""


def freeze() -> None:
    """Collect once, and have the collector pass over what is left, unless ``FD_POSTPROC_GC`` is ``off``.

    Half a million objects of Paddle and FastDeploy live as long as the process; walking through them again
    and again took a fourth of an API server's time.  A step's results are lists and maps that are gone when
    their chunks are written: Python's own threshold has the collector look at them twice a step, while all
    of them live.  One that somebody else has changed stays.
    """
    if GC.text.strip().lower() != "off":
        gc.collect()
        gc.freeze()
        first, *others = gc.get_threshold()
        if 0 < first <= 2000:  # Python's own: 700, and 2000 from 3.13 on
            gc.set_threshold(5 * RESULTS_A_COLLECTION, *others)
