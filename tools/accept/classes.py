"""Our token processor beside FastDeploy's, in one sandbox."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fd_postproc.fastdeploy.engine.processor_class import make_class
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.judgements import gate

from .differences import difference
from .features import ABORT_SETS, Facts
from .sandbox import Sandbox
from .steps import Script
from .trial import Trial

_SLACK = 0.5  # seconds, besides those that the trial takes
_LONGEST_TRIAL_S = 15.0  # seconds; stamps of scratch requests lie further apart


class Pair(NamedTuple):
    """A class and the sandbox that it runs in."""

    box: Sandbox
    cls: type


def prepared(module: Any, make: Callable[[Any], Any] = make_class) -> tuple[tuple[Pair, Pair], Facts]:
    """FastDeploy's class and ours in a sandbox, which stays open, and what FastDeploy's does."""
    box = Sandbox(_with_stock_class(module))
    try:
        facts, cls = Facts.of(box.module, box), make(box.module)
        for name, value in facts.traits.items():
            setattr(cls, name, value)
        return (Pair(box, box.module.TokenProcessor), Pair(box, cls)), facts
    except BaseException:
        box.close()
        raise


@contextlib.contextmanager
def trusting() -> Iterator[None]:
    """Have the gate know everything: ours is tried, nothing of it is left to FastDeploy."""
    judge = gate.judge
    gate.judge = lambda *arguments, **named: judgements.Verdict((), {})  # type: ignore[assignment]
    try:
        yield
    finally:
        gate.judge = judge


def _with_stock_class(module: Any) -> Any:
    """The module with FastDeploy's own class in it, also where ours is installed."""
    stock = getattr(module.TokenProcessor, "stock", None)
    if stock is None:
        return module
    original = types.ModuleType(module.__name__)
    original.__dict__.update(vars(module), TokenProcessor=stock)
    return original


def first_difference_in(script: Script, stock: Pair, ours: Pair, facts: Facts) -> str | None:
    """Run a script on both classes; return the first difference in words, None without one.

    Raises
    ------
    RuntimeError
        If FastDeploy's own class fails.
    """
    script, began = facts.applies(script), time.perf_counter()

    def trial(side: Pair) -> Trial:
        return Trial(
            side.box, side.cls, script, facts.abort_set or ABORT_SETS[0], facts.packed(script.channel)
        )

    try:
        expected = trial(stock).run()
    except Exception as error:
        text = f"FastDeploy's own class fails in the trial '{script.name}': {type(error).__name__}: {error}"
        raise RuntimeError(text) from error
    try:
        actual = trial(ours).run()
    except Exception as error:
        return f"ours raises {type(error).__name__}: {error}"
    elapsed = time.perf_counter() - began
    if elapsed > _LONGEST_TRIAL_S:
        raise RuntimeError(f"the trial '{script.name}' took {elapsed:.0f} s: stamps cannot be compared")
    return _first_difference_in_lists(
        expected, actual, (elapsed + _SLACK) * max(1, len(script.requests) // 10)
    )


def _first_difference_in_lists(
    expected: list[tuple[str, Any]], actual: list[tuple[str, Any]], slack: float
) -> str | None:
    for (place, before), (other_place, after) in zip(expected, actual, strict=False):
        if place != other_place:
            return f"{place} in FastDeploy's class, {other_place} in ours"
        found = difference(before, after, slack)
        if found:
            return f"{place}{found}"
    if len(expected) != len(actual):
        return f"{len(actual)} things happened, not {len(expected)}"
    return None
