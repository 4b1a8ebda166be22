"""Compares our class with the installed FastDeploy's by running both, never by version.

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
from dataclasses import replace
from typing import Any, NamedTuple

from . import known_code
from .canned import SCRIPTS, STREAMED_SCRIPTS, Script
from .differences import difference
from .features import ABORT_SETS, Facts
from .more_steps import RANDOM_SCRIPTS
from .more_steps import script as random_script
from .result import TrialResult
from .sandbox import Sandbox
from .trial import Trial

_NEEDED = (
    *("TokenProcessor", "Request", "RequestMetrics", "RequestOutput", "CompletionOutput"),
    *("LogprobsLists", "SpeculateMetrics", "main_process_metrics"),
    *("MAX_BSZ", "MAX_DRAFT_TOKENS", "SPECULATE_MAX_BSZ", "K", "RECOVERY_STOP_SIGNAL"),
)
SERVED = "2.5 and newer"
_SLACK = 0.5  # seconds, besides those that the trial takes
_LONGEST_TRIAL_S = 15.0  # seconds; stamps of scratch requests lie further apart


NEW_LOOP = (
    "FastDeploy's way of steps over ZeroMQ is not one of those known, which all refuse speculative decoding: "
    "it may take accepted tokens in messages that ours does not read"
)


class Transport(NamedTuple):
    """How steps come.

    Attributes
    ----------
    socket : bool
        Whether they come through a socket (``FD_USE_GET_SAVE_OUTPUT_V1``).
    speculative : bool
        Whether with accepted tokens, which are the same whichever way they come.
    """

    socket: bool
    speculative: bool = False

    @property
    def streamed(self) -> bool:
        """Whether steps come as objects."""
        return self.socket and not self.speculative

    @property
    def unused(self) -> frozenset[str]:
        """Methods of FastDeploy's that do not run."""
        if not self.socket:
            return known_code.SOCKET
        return frozenset() if self.speculative else known_code.QUEUE


_verdicts: weakref.WeakKeyDictionary[Any, dict[Transport, TrialResult]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def check(module: Any, make_class: Callable[[Any], type], speculative: bool = False) -> TrialResult:
    """Compare the classes, once in a process for each module and each transport of steps.

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
    TrialResult
        Never raises: what cannot be tried is not compatible.
    """
    with _lock:
        known, transport = _verdicts.setdefault(module, {}), Transport(_has_socket(module), speculative)
        if transport not in known:
            began = time.perf_counter()
            verdict = compare(module, make_class, transport)
            known[transport] = replace(verdict, seconds=time.perf_counter() - began)
        return known[transport]


def _has_socket(module: Any) -> bool:
    return bool(getattr(module.envs, "FD_USE_GET_SAVE_OUTPUT_V1", False))


def compare(
    module: Any, make_class: Callable[[Any], type], transport: Transport | None = None
) -> TrialResult:
    """The same without a cache; None reads from the environment how steps come."""
    features: tuple[str, ...] = ()
    traits: dict[str, bool] = {}
    try:
        missing = contract_gap(module)
        if missing:
            return TrialResult(False, missing)
        module = _with_stock_class(module)
        box = Sandbox(module)
        facts = Facts.of(module, box)
        transport = Transport(_has_socket(module)) if transport is None else transport
        scripts = STREAMED_SCRIPTS if transport.streamed else SCRIPTS
        features = facts.in_words() + (("steps as objects, through a socket",) if transport.streamed else ())
        ours = Sandbox(module)
        cls: Any = make_class(ours.module)
        traits = facts.traits
        for name, value in traits.items():
            setattr(cls, name, value)
        pair = Pair(box, box.module.TokenProcessor), Pair(ours, cls)
        for script in scripts:
            found = first_difference_in(script, *pair, facts)
            if found:
                return TrialResult(False, f"{script.name}: {found}", features, traits=traits)
        theirs = ours.module.TokenProcessor.__mro__
        own = [one for one in cls.__mro__ if one not in theirs]
        code = known_code.read(own, module.TokenProcessor, transport.unused)
        reads = getattr(getattr(module, "ZmqIpcServer", None), "recv_pyobj", None)
        new = (
            known_code.unknown_words_of("recv_pyobj", reads) if transport.socket and reads is not None else ()
        )
        if new:
            told = f"recv_pyobj looks at {', '.join(new)}"
            reason = f"steps over ZeroMQ are read by something else than pickle: {told}"
            return TrialResult(False, reason, features, traits=traits, unknown=("recv_pyobj",))
        if code.reason:
            return TrialResult(False, code.reason, features, traits=traits, unknown=code.methods)
        if transport.socket and transport.speculative and not known_code.SOCKET.isdisjoint(code.methods):
            return TrialResult(False, NEW_LOOP, features, traits=traits, unknown=code.methods)
        more = _first_difference_in_more(pair, facts, transport.streamed) if code.methods else 0
        if isinstance(more, str):
            return TrialResult(False, more, features, traits=traits, unknown=code.methods)
    except Exception as error:
        return TrialResult(False, f"cannot tell: {type(error).__name__}: {error}", features, traits=traits)
    reason = f"equal in {len(scripts) + more} trials"
    return TrialResult(True, reason, features, traits=traits, unknown=code.methods)


def _first_difference_in_more(pair: tuple[Pair, Pair], facts: Facts, streamed: bool) -> str | int:
    """Run random scripts; return the first difference, or how many were equal."""
    equal = 0
    for number in range(RANDOM_SCRIPTS):
        script = random_script(number, facts, streamed)
        try:
            found = first_difference_in(script, *pair, facts)
        except RuntimeError:  # FastDeploy's own class does not take it
            continue
        if found:
            return f"{script.name}: {found}"
        equal += 1
    return equal


def _with_stock_class(module: Any) -> Any:
    """The module with FastDeploy's own class in it, also where ours is installed."""
    stock = getattr(module.TokenProcessor, "stock", None)
    if stock is None:
        return module
    original = types.ModuleType(module.__name__)
    original.__dict__.update(vars(module), TokenProcessor=stock)
    return original


def contract_gap(module: Any) -> str | None:
    """Reason why the module is not of the supported family; None if it is."""
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"{module.__name__} has no {name}; served are FastDeploy {SERVED}"
    if not hasattr(module.RequestMetrics, "record_recv_token"):
        return f"RequestMetrics has no record_recv_token; served are FastDeploy {SERVED}"
    return None


class Pair(NamedTuple):
    """A class and its sandbox."""

    box: Sandbox
    cls: type


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
