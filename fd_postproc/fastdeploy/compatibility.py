"""Does our class do what the installed FastDeploy's own does?  Decided by trying both, never by version.

::

    verdict = check(module, make_class)
    verdict.compatible, verdict.reason, verdict.features
"""

from __future__ import annotations

import math
import threading
import time
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .canned import PREEMPTED, SCRIPTS, Message, Script
from .sandbox import Sandbox, _is_library
from .trial import Trial

ABORT_SETS = ("to_be_aborted_req_id_set", "abort_req_ids_set")
"""Names of the resource manager's set of requests that are to be aborted, newest first."""

_NEEDED = (
    *("TokenProcessor", "Request", "RequestMetrics", "RequestOutput", "CompletionOutput", "RequestStatus"),
    *("LogprobsLists", "SpeculateMetrics", "main_process_metrics"),
    *("MAX_BSZ", "MAX_DRAFT_TOKENS", "SPECULATE_MAX_BSZ", "K", "RECOVERY_STOP_SIGNAL"),
)
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
    forced : bool
        Compatible only because ``FD_POSTPROC_FORCE`` says so; the reason tells the difference.
    """

    compatible: bool
    reason: str
    features: tuple[str, ...] = ()
    seconds: float = 0.0
    forced: bool = False


_verdicts: weakref.WeakKeyDictionary[Any, Verdict] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def check(module: Any, make_class: Callable[[Any], type]) -> Verdict:
    """Compare the classes; once for each module in a process.

    Parameters
    ----------
    module : module
        ``fastdeploy.output.token_processor``.
    make_class : callable
        ``make_class(module)`` gives our class, a subclass of ``module.TokenProcessor``.

    Returns
    -------
    Verdict
        Never raises: what cannot be tried is not compatible.
    """
    with _lock:
        if module not in _verdicts:
            began = time.perf_counter()
            verdict = compare(module, make_class)
            _verdicts[module] = replace(verdict, seconds=time.perf_counter() - began)
        return _verdicts[module]


def compare(module: Any, make_class: Callable[[Any], type]) -> Verdict:
    """The same, anew each time."""
    features: tuple[str, ...] = ()
    try:
        missing = contract_gap(module)
        if missing:
            return Verdict(False, missing)
        box = Sandbox(module)
        facts = Facts.of(module, box)
        features = facts.in_words()
        ours = Sandbox(module)
        pair = Pair(box, box.module.TokenProcessor), Pair(ours, make_class(ours.module))
        for script in SCRIPTS:
            found = first_difference_in(script, *pair, facts)
            if found:
                return Verdict(False, f"{script.name}: {found}", features)
    except Exception as error:
        return Verdict(False, f"cannot tell: {type(error).__name__}: {error}", features)
    return Verdict(True, f"equal in {len(SCRIPTS)} trials", features)


def contract_gap(module: Any) -> str | None:
    """Why the module is not of the family that this package serves; None if it is."""
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"{module.__name__} has no {name}; served are FastDeploy 2.4 to 2.6"
    if not hasattr(module.RequestMetrics, "record_recv_token"):
        return "RequestMetrics has no record_recv_token, so this FastDeploy is older than 2.4"
    return None


class Pair(NamedTuple):
    """A class and the sandbox that it lives in."""

    box: Sandbox
    cls: type


# ---- what varies between versions --------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What this FastDeploy's class has.

    Attributes
    ----------
    abort_set : str
        Empty if it knows no aborts.
    packed_topk, packed_spec_topk : bool
        Whether the number of logprob columns is read from the header.
    speculative_mark : bool
        Whether an accept count of -9 means that the worker preempted the request.
    names : frozenset of str
        Attributes and globals that its functions mention.
    labelled : bool
        Metrics have labels, and are updated by name.
    """

    abort_set: str
    packed_topk: bool
    packed_spec_topk: bool
    speculative_mark: bool
    names: frozenset[str]
    labelled: bool

    @classmethod
    def of(cls, module: Any, box: Sandbox) -> Facts:
        """Read the class's code, and try what that does not tell."""
        names = frozenset(_names_in(module.TokenProcessor))
        facts = cls(
            abort_set=next((name for name in ABORT_SETS if name in names), ""),
            packed_topk=True,
            packed_spec_topk=True,
            speculative_mark=True,
            names=names,
            labelled=hasattr(module.main_process_metrics, "obs_value"),
        )
        return replace(
            facts,
            packed_topk=facts._reads_columns(box, "topk"),
            packed_spec_topk=facts._reads_columns(box, "spec_topk"),
            speculative_mark=facts._knows_mark(box),
        )

    def _reads_columns(self, box: Sandbox, channel: str) -> bool:
        put = self._try(box, Script("header", channel, ({},), (Message(((11,),), columns=2),)))
        return bool(put) and len(put[0].outputs.top_logprobs.logprobs[0]) == 2

    def _knows_mark(self, box: Sandbox) -> bool:
        script = Script("mark", "spec", ({}, {}), (Message(((11,), PREEMPTED), preempted=(1,)),))
        return [result.outputs.index for result in self._try(box, script)] == [0]

    def _try(self, box: Sandbox, script: Script) -> list[Any]:
        """Results of FastDeploy's class; none if it raises."""
        trial = Trial(box, box.module.TokenProcessor, script, self.abort_set or ABORT_SETS[0], packed=True)
        try:
            trial.run()
        except Exception:
            return []
        return [result for batch in trial.scheduler.put for result in batch]

    def packed(self, channel: str) -> bool:
        """Whether messages of a channel have the number of columns in the header."""
        return self.packed_spec_topk if channel == "spec_topk" else self.packed_topk

    def applies(self, script: Script) -> Script:
        """The script without what this FastDeploy's worker never sends."""
        messages = script.messages
        if script.speculative and not self.speculative_mark:
            messages = tuple(
                replace(
                    message,
                    slots=tuple(0 if slot == PREEMPTED else slot for slot in message.slots),
                    preempted=(),
                    aborted=(),
                )
                for message in messages
            )
        if not self.abort_set:
            messages = tuple(replace(message, aborted=()) for message in messages)
        if script.masks and "use_sampling_mask" not in self.names:
            return replace(script, messages=messages, masks=False)
        return replace(script, messages=messages)

    def in_words(self) -> tuple[str, ...]:
        """For a log line."""
        words = []
        packed = [name for name in ("topk", "spec_topk") if self.packed(name)]
        words.append(f"columns in the header of {' and '.join(packed)}" if packed else "fixed 21 columns")
        words.append("labelled metrics" if self.labelled else "metrics without labels")
        words.append(f"aborts by {self.abort_set}" if self.abort_set else "no aborts")
        for name, word in (
            ("use_sampling_mask", "sampling masks"),
            ("enable_draft_logprob", "draft logprobs"),
            ("_benchmark_logger", "benchmark logger"),
            ("scheduler_metrics_logger", "scheduler metrics"),
            ("routing_replay_config", "routing replay"),
        ):
            if name in self.names:
                words.append(word)
        return tuple(words)


def _names_in(cls: type) -> set[str]:
    """Every name in the code of a class and its bases, libraries left out."""
    names: set[str] = set()
    for one in cls.__mro__:
        if not _is_library(one.__module__):
            for value in vars(one).values():
                function = getattr(value, "fget", getattr(value, "__func__", value))
                if isinstance(function, types.FunctionType):
                    _add_names(function.__code__, names)
    return names


def _add_names(code: types.CodeType, names: set[str]) -> None:
    names.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_names(constant, names)
        elif isinstance(constant, str):  # getattr(config, "name", default)
            names.add(constant)


# ---- the comparison ----------------------------------------------------------------------------------


def first_difference_in(script: Script, stock: Pair, ours: Pair, facts: Facts) -> str | None:
    """Run a script on both classes; the first difference in words, None if there is none.

    Raises
    ------
    RuntimeError
        If FastDeploy's own class fails.
    """
    script, began = facts.applies(script), time.perf_counter()
    arguments = (script, facts.abort_set or ABORT_SETS[0], facts.packed(script.channel))
    try:
        expected = Trial(*stock, *arguments).run()
    except Exception as error:
        text = f"FastDeploy's own class fails in the trial '{script.name}': {type(error).__name__}: {error}"
        raise RuntimeError(text) from error
    try:
        actual = Trial(*ours, *arguments).run()
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


def difference(expected: Any, actual: Any, slack: float, near: bool = False) -> str | None:
    """Where two values differ first; None if they do not.

    Parameters
    ----------
    slack : float
        Seconds that two stamps may be apart.
    near : bool, optional
        The values are stamps or made from them: in entries named ``metrics`` or after a time.
    """
    if type(expected) is not type(actual):
        return f": {_short(expected)} is expected, ours is {_short(actual)}"
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return _keys(list(expected), list(actual))
        pairs = [(f", {key}", expected[key], actual[key], near or _of_times(key)) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            return f": {len(expected)} entries are expected, ours has {len(actual)}: {_short(actual)}"
        pairs = [(f"[{i}]", *both, near) for i, both in enumerate(zip(expected, actual, strict=True))]
    elif isinstance(expected, float):
        room = slack if near else 1e-9 * abs(expected)
        return None if _close(expected, actual, room) else f": {expected!r} is expected, ours is {actual!r}"
    elif hasattr(expected, "__dataclass_fields__"):
        names = list(expected.__dataclass_fields__)
        pairs = [(f".{name}", getattr(expected, name), getattr(actual, name), near) for name in names]
    else:
        return None if expected == actual else f": {_short(expected)} is expected, ours is {_short(actual)}"
    for place, before, after, inside in pairs:
        found = difference(before, after, slack, inside)
        if found:
            return place + found
    return None


def _of_times(key: Any) -> bool:
    return key == "metrics" or "time" in str(key)


def _close(expected: float, actual: float, room: float) -> bool:
    if expected == actual:
        return math.copysign(1, expected) == math.copysign(1, actual)
    return abs(expected - actual) <= room or (math.isnan(expected) and math.isnan(actual))


def _keys(expected: list[Any], actual: list[Any]) -> str:
    missing = [key for key in expected if key not in actual]
    more = [key for key in actual if key not in expected]
    if missing:
        return f": ours lacks {missing[0]!r}"
    if more:
        return f": ours has {more[0]!r} besides"
    return f": entries in the order {expected} are expected, ours are {actual}"


def _short(value: Any, limit: int = 120) -> str:
    text = f"{value!r}"
    return text if len(text) <= limit else f"{text[:limit]}..."
