"""The base of the mix-ins: FastDeploy's attributes, and work that must not disturb requests."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ....flight.recorder import Recorder
from ....log_throttle import Complaints
from ..health.counters import Counters

if TYPE_CHECKING:
    from typing import Protocol

    from ...contract import Module, StockProcessor
    from ..results._results import Plan

    class Base(StockProcessor, Protocol):
        """Attributes of every mix-in: FastDeploy's, and those of `processor_class.make_class`."""

        fd: Module
        stock: type
        plan: Plan
        aborts_itself: bool
        makes_empty_results: bool

else:
    Base = object  # FastDeploy's class comes after the parts, and its methods must not be hidden


class BestEffort(Base):
    """Mix-in of `best_effort`, the counters, the complaints and the flight recorder."""

    recorder = Recorder()  # records nothing, until `run`

    # Per object, but made when first asked for: FastDeploy's tests make objects without __init__.
    @cached_property
    def complained(self) -> set[str]:
        """Kinds of failures that are logged already."""
        return set()

    @cached_property
    def counters(self) -> Counters:
        """Counts and times of this object's work."""
        return Counters()

    @cached_property
    def complaints(self) -> Complaints:
        """Throttled log of events that may come thousands of times a second."""
        return Complaints(lambda text: self.fd.llm_logger.error(f"fd_postproc: {text}"))

    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function for metrics, logs or traces; return None and log if it raises."""
        try:
            return call(*arguments)
        except Exception as error:
            self.note_failure(what, error)
        return None

    def note_failure(self, what: str, error: Exception) -> None:
        """Log a failure that does not disturb requests, once for each kind."""
        if what not in self.complained:
            self.complained.add(what)
            trace = "".join(traceback.format_exception(error))
            failure = f"{type(error).__name__}: {error}\n{trace}"
            self.fd.llm_logger.warning(f"fd_postproc: {what} failed, the request goes on ({failure})")

    def _is_stock(self, name: str) -> bool:
        """Whether a method is FastDeploy's own, neither overridden nor replaced on this object."""
        method = getattr(getattr(self, name), "__func__", None)
        return method is not None and method is getattr(self.stock, name, None)
