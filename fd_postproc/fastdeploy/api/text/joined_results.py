"""Decision whether this API process takes results that a stream interval has joined.

FastDeploy's parsers were written for one token a result, and without speculation FastDeploy makes no others.
So the engine joins results only for a process that has said that it takes them (`array_readers.JOINED`).
There a joined result says what its tokens say one by one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ....support.environment import STREAM_INTERVAL
from ...array_readers import JOINED, announce
from ...events.log import api_log

_announced: socket.socket | None = None
_are_expected = False


def is_on() -> bool:
    """Whether the environment asks for a stream interval."""
    return not STREAM_INTERVAL.complaint and STREAM_INTERVAL.value[0] > 0


def are_expected() -> bool:
    """Whether a result of several tokens may be one that was joined."""
    return _are_expected


def announce_or_withdraw(client: Any, why_not: Callable[[Any], str | None]) -> str | None:
    """Decide for the data processor of an ``EngineClient``, announce it to the engine; return why not."""
    global _announced, _are_expected
    if not is_on():
        return None
    withdraw()
    path: Any = getattr(getattr(client, "connection_manager", None), "pull_ipc_path", None)
    reason = why_not(client)
    if reason is None and type(path) is not str:
        reason = "results do not come in batches"
    _are_expected = reason is None  # before the first one comes
    if reason is None:
        _announced = announce(path, JOINED)
        if _announced is None:
            reason = "the process cannot say so to the engine"
    if reason is not None:
        api_log().warning(
            f"fd_postproc: {STREAM_INTERVAL} has no effect for the streams of this API process: {reason}"
        )
    return reason


def withdraw() -> None:
    """Take no joined results from now on; the engine notices within a second or two."""
    global _announced
    if _announced is not None:
        _announced.close()
    _announced = None
