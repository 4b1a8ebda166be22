"""The lowest part: what must not disturb a request is tried, and what has happened is counted and logged."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cached_property
from typing import Any

from ...complaints import Complaints
from ...flight.recorder import Recorder
from .contract import Base
from .counters import Counters


class BestEffort(Base):
    """`best_effort`, the counters, the complaints, the flight recorder."""

    recorder = Recorder()  # records nothing, until `run`

    # Per object, but made when first asked for: FastDeploy's tests make objects without __init__.
    @cached_property
    def complained(self) -> set[str]:
        """Kinds of failures that were logged already."""
        return set()

    @cached_property
    def counters(self) -> Counters:
        """What this object has done, and how long it took."""
        return Counters()

    @cached_property
    def complaints(self) -> Complaints:
        """What is logged of things that may happen thousands of times a second."""
        return Complaints(lambda text: self.fd.llm_logger.error(f"fd_postproc: {text}"))

    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call what serves metrics, logs or traces.  What it returns; None if it raised, which is logged."""
        try:
            return call(*arguments)
        except Exception as error:
            self.note_failure(what, error)
        return None

    def note_failure(self, what: str, error: Exception) -> None:
        """Log that something failed which does not disturb requests, once for each kind."""
        if what not in self.complained:
            self.complained.add(what)
            trace = "".join(traceback.format_exception(error))
            failure = f"{type(error).__name__}: {error}\n{trace}"
            self.fd.llm_logger.warning(f"fd_postproc: {what} failed, the request goes on ({failure})")

    def _is_stock(self, name: str) -> bool:
        """Whether a method is FastDeploy's own, neither overridden nor replaced on this object."""
        method = getattr(getattr(self, name), "__func__", None)
        return method is not None and method is getattr(self.stock, name, None)
