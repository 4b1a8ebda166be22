"""Does our class do what the installed FastDeploy's own does?  Decided by trying both, never by version.

::

    verdict = check(module, make_class)
    verdict.compatible, verdict.reason, verdict.features
"""

from __future__ import annotations

import threading
import time
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .canned import SCRIPTS, STREAMED_SCRIPTS, Script
from .differences import difference
from .facts import ABORT_SETS, Facts
from .sandbox import Sandbox
from .trial import Trial

_NEEDED = (
    *("TokenProcessor", "Request", "RequestMetrics", "RequestOutput", "CompletionOutput"),
    *("LogprobsLists", "SpeculateMetrics", "main_process_metrics"),
    *("MAX_BSZ", "MAX_DRAFT_TOKENS", "SPECULATE_MAX_BSZ", "K", "RECOVERY_STOP_SIGNAL"),
)
SERVED = "2.5 and newer"
_SLACK = 0.5  # seconds, besides those that the trial takes
_PATIENCE = 15.0  # seconds; stamps of scratch requests lie further apart


@dataclass(frozen=True)
class Verdict:
    """What the check found.

    Attributes
    ----------
    compatible : bool
    reason : str
        One sentence in plain words; of a difference, the first one.
    features : tuple of str
        What this FastDeploy has that others do not, in plain words.
    seconds : float
        How long the check took.
    traits : dict of str to bool
        Attributes that our class has to have for this FastDeploy.
    forced : bool
        Compatible only because ``FD_POSTPROC_FORCE`` says so; the reason tells the difference.
    """

    compatible: bool
    reason: str
    features: tuple[str, ...] = ()
    seconds: float = 0.0
    traits: dict[str, bool] = field(default_factory=dict)
    forced: bool = False


_verdicts: weakref.WeakKeyDictionary[Any, dict[bool, Verdict]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def check(module: Any, make_class: Callable[[Any], type], speculative: bool = False) -> Verdict:
    """Compare the classes; once for each module, and each way in which steps come, in a process.

    Parameters
    ----------
    module : module
        ``fastdeploy.output.token_processor``.
    make_class : callable
        ``make_class(module)`` gives our class, a subclass of ``module.TokenProcessor``.
    speculative : bool
        Whether steps are those of speculative decoding, which are the same whichever way they come.

    Returns
    -------
    Verdict
        Never raises: what cannot be tried is not compatible.
    """
    with _lock:
        known, streamed = _verdicts.setdefault(module, {}), _is_streamed(module) and not speculative
        if streamed not in known:
            began = time.perf_counter()
            verdict = compare(module, make_class, streamed)
            known[streamed] = replace(verdict, seconds=time.perf_counter() - began)
        return known[streamed]


def _is_streamed(module: Any) -> bool:
    """Whether steps come as objects, through a socket."""
    return bool(getattr(module.envs, "FD_USE_GET_SAVE_OUTPUT_V1", False))


def compare(module: Any, make_class: Callable[[Any], type], streamed: bool | None = None) -> Verdict:
    """The same, anew each time; `streamed`: whether steps come as objects, by the environment if None."""
    features: tuple[str, ...] = ()
    traits: dict[str, bool] = {}
    try:
        missing = contract_gap(module)
        if missing:
            return Verdict(False, missing)
        module = _with_stock_class(module)
        box = Sandbox(module)
        facts = Facts.of(module, box)
        streamed = _is_streamed(module) if streamed is None else streamed
        scripts = STREAMED_SCRIPTS if streamed else SCRIPTS
        features = facts.in_words() + (("steps as objects, through a socket",) if streamed else ())
        ours = Sandbox(module)
        cls: Any = make_class(ours.module)
        traits = facts.traits
        for name, value in traits.items():
            setattr(cls, name, value)
        pair = Pair(box, box.module.TokenProcessor), Pair(ours, cls)
        for script in scripts:
            found = first_difference_in(script, *pair, facts)
            if found:
                return Verdict(False, f"{script.name}: {found}", features, traits=traits)
    except Exception as error:
        return Verdict(False, f"cannot tell: {type(error).__name__}: {error}", features, traits=traits)
    return Verdict(True, f"equal in {len(scripts)} trials", features, traits=traits)


def _with_stock_class(module: Any) -> Any:
    """The module with FastDeploy's own class in it, also if somebody has put ours there."""
    stock = getattr(module.TokenProcessor, "stock", None)
    if stock is None:
        return module
    original = types.ModuleType(module.__name__)
    original.__dict__.update(vars(module), TokenProcessor=stock)
    return original


def contract_gap(module: Any) -> str | None:
    """Why the module is not of the family that this package serves; None if it is."""
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"{module.__name__} has no {name}; served are FastDeploy {SERVED}"
    if not hasattr(module.RequestMetrics, "record_recv_token"):
        return f"RequestMetrics has no record_recv_token; served are FastDeploy {SERVED}"
    return None


class Pair(NamedTuple):
    """A class and the sandbox that it lives in."""

    box: Sandbox
    cls: type


def first_difference_in(script: Script, stock: Pair, ours: Pair, facts: Facts) -> str | None:
    """Run a script on both classes; the first difference in words, None if there is none.

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
    if elapsed > _PATIENCE:
        raise RuntimeError(f"the trial '{script.name}' took {elapsed:.0f} s: stamps cannot be compared")
    return _first_difference_in_lists(expected, actual, elapsed + _SLACK)


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
