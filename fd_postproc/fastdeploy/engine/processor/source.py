"""What the receive loop asks of a source of steps: a queue or a socket."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..results._results import Stages


class Trouble(NamedTuple):
    """Fault of the queue, which ends with the next step."""

    kind: str  # "removed", "refused" or "queue"
    text: str
    steps: int = 0  # how many there were before it


class Processing(Protocol):
    """What makes results of steps: `Steps` or `Streamed`."""

    def process(self, step: Any, stages: Stages | None = None) -> None:
        """Process a step."""


class Source(Protocol):
    """Where steps come from; all but `wake` is called in the token thread."""

    def next(self, patience: float | None) -> Any:
        """Wait for a step, for so many seconds; None if there is none."""

    def failed(self, error: Exception) -> tuple[Trouble | None, float | None]:
        """Report why `next` has raised: its trouble, None without one; and how long to wait then, in seconds.

        An exception that says nothing of the source is raised again.
        """

    def wake(self) -> None:
        """Have `next` return or raise, now or at its next call: the loop ends."""
