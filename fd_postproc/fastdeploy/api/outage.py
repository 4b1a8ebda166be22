"""An outage of an API process: its streams end once, its requests are refused, and operators see it."""

from __future__ import annotations

from typing import Any

from ..events.counters import count
from ..events.gauges import export
from ..events.log import api_log
from .connections import NoResults


class Outage:
    """An outage that may come and go; a subclass finds out when, and has the text for clients."""

    reason: str  # in the log, and in the gauge ``unhealthy``
    counter: str  # of requests that it ended or refused
    error: type[Exception]  # what a stream that waits is ended with
    text: Any

    def __init__(self) -> None:
        self._ended: dict[str, Any] = {}  # by request: the queue that has been given `NoResults`

    def count(self, outcome: str, requests: int = 1) -> None:
        """Count requests that were ``ended`` or ``refused``."""
        count(self.counter, outcome, requests)

    def has_begun(self, text: str) -> None:
        """Log that it has begun, and set the gauge."""
        api_log().error(f"fd_postproc: unhealthy ({self.reason}): {text}")
        export("unhealthy", "reason", self.reason, True)

    def is_over(self, text: str) -> None:
        """Log that it is over, and reset the gauge."""
        self._ended = {}
        export("unhealthy", "reason", self.reason, False)
        api_log().info(f"fd_postproc: healthy again{text}")

    def end_streams(self, requests: dict[str, Any]) -> None:
        """End every waiting stream once, including those registered since the last call."""
        waiting = dict(requests.items())
        streams = [queue for name, queue in waiting.items() if self._ended.get(name) is not queue]
        for queue in streams:
            queue.put_nowait(NoResults(self.error(self.text)))
        self._ended = waiting
        self.count("ended", len(streams))
