"""Keeps FastDeploy's schedule thread from asking again what cannot have changed.

The thread polls every 5 ms.  In each round it asks a manager's process whether the worker has fetched its
tasks, and walks over all running requests.  Models step every 20 to 100 ms: between two steps no request
needs anything, and most rounds find what the round before found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...support.environment import KEEP_POLLING, is_on
from ..events.guard import Guard
from ..events.totals import Counters
from ..gate.judgements import gate
from ..gate.replacements import Replacement
from ..gate.seams import SEAMS

SEAM = "scheduling"

LONGEST_S = 0.25
"""Seconds for which an answer is given again: the most by which an unforeseen change can be late."""


class FetchedTasks:
    """Answers for FastDeploy's ``EngineWorkerQueue`` whether the worker has still to fetch tasks.

    Only this engine puts tasks into its queue: once the worker has fetched them, there are none until the
    next ``put_tasks``.

    Parameters
    ----------
    queue : EngineWorkerQueue
        The queue that the engine's threads put tasks into.
    clock : callable
        Seconds.
    """

    def __init__(self, queue: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue, self._cls, self._clock = queue, type(queue), clock
        self._put: object = None  # another object for each begin and end of a put
        self._fetched: tuple[object, float] | None = None  # the put that was fetched, and until when

    def exist_tasks(self) -> bool:
        """Whether there are tasks that the worker has not fetched."""
        put, now, fetched = self._put, self._clock(), self._fetched
        if fetched is not None and fetched[0] is put and now < fetched[1]:
            return False
        exist: bool = self._cls.exist_tasks(self._queue)
        self._fetched = None if exist else (put, now + LONGEST_S)
        return exist

    def put_tasks(self, *arguments: Any, **named: Any) -> Any:
        """Put tasks, as FastDeploy does."""
        self._put = object()
        try:
            return self._cls.put_tasks(self._queue, *arguments, **named)
        finally:  # also what was asked meanwhile is out of date
            self._put = object()


class Rounds:
    """Leaves out the rounds of FastDeploy's ``ResourceManagerV1`` that would schedule nothing.

    Parameters
    ----------
    manager : ResourceManagerV1
        The manager whose ``schedule`` the engine's thread calls.
    counters : Counters
        The token thread's, whose steps are counted at their end.
    clock : callable
        Seconds.
    """

    def __init__(self, manager: Any, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager, self._cls, self._counters, self._clock = manager, type(manager), counters, clock
        self._guard = Guard(SEAM)
        self._nothing: tuple[Any, float, type] | None = None  # state, until when, the class of the tasks

    def schedule(self) -> tuple[Any, Any]:
        """Tasks for the worker, and the requests that end with an error, as FastDeploy gives them."""
        state, now, nothing = self._guarded(self._state), self._clock(), self._nothing
        if nothing is not None and state == nothing[0] and now < nothing[1]:
            return nothing[2](), []
        self._nothing = None
        tasks, errors = self._cls.schedule(self._manager)
        if state is not None and not len(tasks) and not errors and self._guarded(self._needs_nothing):
            self._nothing = state, now + LONGEST_S, type(tasks)
        return tasks, errors

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        """The answer; None where ours raises, and FastDeploy's round is made."""
        if not self._guard.is_on:
            return None
        try:
            answer = ask()
        except Exception as error:
            self._guard.failed(error)
            return None
        self._guard.worked()
        return answer

    def _state(self) -> tuple[int, ...] | None:
        """What a round depends on while all running requests decode; None where there is work for one."""
        manager, counters = self._manager, self._counters
        running = len(manager.running)
        if (manager.waiting and running < manager.max_num_seqs) or manager.need_block_num_signal.value.any():
            return None
        aborts = len(manager.waiting_abort_req_id_set)  # an id leaves it in a round or a step
        unhandled = getattr(manager, "scheduler_unhandled_request_num", 0)  # for a gauge
        return counters.steps, counters.lost_steps, running, len(manager.waiting), aborts, unhandled

    def _needs_nothing(self) -> bool:
        """Whether each running request decodes and has blocks for its next tokens."""
        cache = self._manager.config.cache_config
        size, least = cache.block_size, cache.prealloc_dec_block_slot_num_threshold
        return all(
            one.num_computed_tokens >= one.need_prefill_tokens
            and len(one.block_tables) * size - one.num_total_tokens > least
            and not one.use_extend_tables
            for one in tuple(self._manager.running)
        )


class Scheduling:
    """Our answers in the places of one engine's resource manager and task queue, until `end`.

    Parameters
    ----------
    counters : Counters
        As for `Rounds`.

    Attributes
    ----------
    applies : bool
        Whether `begin` has found an engine of which rounds can be left out.
    """

    applies = False

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._replacement: Replacement | None = None

    @property
    def is_installed(self) -> bool:
        """Whether ours answers."""
        return self._replacement is not None

    def begin(self, manager: Any, queue: Any) -> None:
        """Install our answers where they can apply and FastDeploy's code is known."""
        self.applies = can_apply(manager, queue)
        if self._replacement is None and self.applies and gate.judge(SEAM).reason is None:
            rounds, fetched = Rounds(manager, self._counters), FetchedTasks(queue)
            self._replacement = Replacement(
                "scheduling",
                (manager, "schedule", rounds.schedule),
                (queue, "exist_tasks", fetched.exist_tasks),
                (queue, "put_tasks", fetched.put_tasks),
            ).install()

    def end(self) -> None:
        """Restore FastDeploy's own methods."""
        if self._replacement is not None:
            self._replacement.restore()
        self._replacement = None


def can_apply(manager: Any, queue: Any) -> bool:
    """Whether an engine schedules in rounds of which some can be left out.

    Rounds of prefill and decode nodes depend on other nodes, and those of a cache manager of version 1 move
    the cache.
    """
    if is_on(KEEP_POLLING) or type(manager).__name__ != "ResourceManagerV1":
        return False
    replaced = {*vars(manager), *getattr(queue, "__dict__", {})} & SEAMS[SEAM].attributes
    return (
        type(queue).__name__ == "EngineWorkerQueue"
        and not replaced
        and manager.config.scheduler_config.splitwise_role == "mixed"
        and not getattr(manager, "enable_cache_manager_v1", False)
    )
