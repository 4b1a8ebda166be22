"""Metrics that count like FastDeploy's and are not exported.

Copies of real metric objects with fresh values in ordinary memory.  A new metric object would not do: in
multiprocess mode, which FastDeploy switches on, it shares a memory-mapped file with the real one.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

BY_NAME = {"obs_value": "observe", "inc_value": "inc", "dec_value": "dec", "set_value": "set"}
"""FastDeploy's metric updates since its pull request #7865, and their effect on a metric."""

SPECULATIVE = "spec_decode_"
_OWN = "_values_of_the_trial"  # attribute of a copy
_HEADS = "spec_decode_draft_single_head_acceptance_rate"


class PrivateMetrics:
    """Stand-in for ``main_process_metrics``.

    Parameters
    ----------
    real : object
        FastDeploy's; only looked at.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self._made: dict[str, Any] = {}
        self._labelled: dict[str, Series] = {}  # by name and labels
        self._heads: int | None = None  # None until the speculative metrics are made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__["_made"]
        if name not in made:
            made[name] = self._make(name)
        return made[name]

    def _make(self, name: str) -> Any:
        if name.startswith(SPECULATIVE):
            return self._make_speculative(name)
        real = getattr(self._real, name)
        if name in BY_NAME:
            return functools.partial(self._update, BY_NAME[name])
        if isinstance(real, (list, tuple)):
            return [private_copy(one) for one in real]
        return private_copy(real)

    def _update(
        self, how: str, name: str, value: float = 1, labelvalues: dict[str, Any] | None = None
    ) -> None:
        """Update a metric by name: directly, unless it has labels."""
        labels = labelvalues or {}
        real: Any = getattr(self._real, name, None)
        if labels or getattr(real, "_labelnames", None):
            metric = self._labelled.setdefault(f"{name} {sorted(labels.items())}", Series())
        else:
            metric = getattr(self, name)
        getattr(metric, how)(value)

    def _make_speculative(self, name: str) -> Any:
        """Make a speculative metric; FastDeploy registers its own at the first speculative step."""
        if self._heads is None:
            raise AttributeError(name)
        return [Series() for _ in range(self._heads)] if name == _HEADS else Series()

    def _init_speculative_metrics(self, method: Any, heads: int) -> None:
        self._heads = heads

    def reset(self) -> None:
        """Reset to zero; a class may hold references to the metrics."""
        self._labelled.clear()
        for name, metric in self._made.items():
            if name in BY_NAME:
                continue
            for one in metric if isinstance(metric, list) else [metric]:
                if isinstance(one, Series):
                    one.reset()
                else:
                    for value in _flat(_values(one)):
                        value.set(0.0)

    def samples(self) -> dict[str, Any]:
        """The values of all touched metrics, by name."""
        found = {f"{name} by name": series.sample() for name, series in self._labelled.items()}
        for name, metric in self._made.items():
            if name in BY_NAME:
                continue
            if isinstance(metric, list):
                found |= {f"{name}[{i}]": _sample(one) for i, one in enumerate(metric)}
            else:
                found[name] = _sample(metric)
        return {name: found[name] for name in sorted(found) if found[name] is not None}


class Series:
    """A metric of any kind."""

    def __init__(self) -> None:
        self.observed: list[float] = []
        self.value = 0.0
        self._children: dict[Any, Series] = {}

    def observe(self, amount: float) -> None:
        self.observed.append(amount)

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set(self, value: float) -> None:
        self.value = float(value)

    def reset(self) -> None:
        self.value = 0.0
        self.observed.clear()
        self._children.clear()

    def labels(self, *values: Any, **named: Any) -> Series:
        return self._children.setdefault((values, tuple(sorted(named.items()))), Series())

    def sample(self) -> Any:
        children = {f"labels {key}": child.sample() for key, child in self._children.items()}
        own = {"observed": sorted(self.observed), "value": self.value}
        return own | children if self.observed or self.value or any(children.values()) else None


def private_copy(metric: Any) -> Any:
    """A private copy of a metric: the same class and buckets, from zero."""
    if not type(metric).__module__.startswith("prometheus_client"):
        return Series()
    if getattr(metric, "_labelnames", ()) and not getattr(metric, "_labelvalues", ()):
        return Series()  # its children would be made in the shared file
    fresh = importlib.import_module("prometheus_client.values").MutexValue
    made = object.__new__(type(metric))
    made.__dict__.update(vars(metric))
    if hasattr(metric, "_lock"):
        made.__dict__["_lock"] = threading.Lock()

    def zero() -> Any:
        return fresh(None, "", "", (), (), "")

    own = {
        name: [zero() for _ in value] if isinstance(value, list) else zero()
        for name, value in _values(metric).items()
    }
    made.__dict__.update(own)
    made.__dict__[_OWN] = own
    return made


def _is_value(value: Any) -> bool:
    if value is None or isinstance(value, (str, int, float, tuple, dict)):
        return False
    return all(callable(getattr(value, name, None)) for name in ("get", "set", "inc"))


def _values(metric: Any) -> dict[str, Any]:
    """The values of a metric by attribute: one, or a list."""
    own: dict[str, Any] | None = vars(metric).get(_OWN)
    if own is not None:
        return own
    return {
        name: value
        for name, value in vars(metric).items()
        if _is_value(value) or (isinstance(value, list) and value and all(map(_is_value, value)))
    }


def _flat(values: dict[str, Any]) -> list[Any]:
    return [one for value in values.values() for one in (value if isinstance(value, list) else [value])]


def _sample(metric: Any) -> Any:
    """The numbers of a metric; None if it was not touched."""
    if isinstance(metric, Series):
        return metric.sample()
    values = _values(metric)
    if not any(one.get() for one in _flat(values)):
        return None
    return {
        name: [one.get() for one in value] if isinstance(value, list) else value.get()
        for name, value in values.items()
    }
