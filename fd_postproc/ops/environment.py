"""Environment variables that the ops read in every call, by a fast look-up in C."""

from __future__ import annotations

from functools import cache

from .._core import environment_variable, has_logprobs, most_requests
from ..core.layout import Channel, Dialect, Layout
from ..support.environment import COMPACT, DIALECT, MESSAGE_ID, PEER, service_number

_NAMED: dict[str, Dialect] = {"packed": "packed", "legacy": "legacy", "compact": "compact"}


def message_id() -> int:
    """``INFERENCE_MSG_ID``: the number whose sign says whether the worker continues; default 1.

    2 is not allowed: a get op reports "nothing there" as -2.  (FastDeploy's ops abort on a bad value.)
    """
    number: int = MESSAGE_ID.of(environment_variable(MESSAGE_ID.name))
    return number


@cache
def _announced(peer: str) -> tuple[frozenset[str], int]:
    """The words in a value of ``FD_POSTPROC_PEER``, and the service's number; 0: none."""
    return frozenset(peer.split(",")), service_number(peer)


def peer_understands(word: str) -> bool:
    """Whether ``FD_POSTPROC_PEER``, which the reading side sets, contains a word."""
    return word in _announced(environment_variable(PEER.name) or "")[0]


def send_dialect(logprobs: bool, too_many_for_stock: bool) -> Dialect:
    """Dialect that the save ops send: ``FD_POSTPROC_DIALECT``, or what ``auto`` means here.

    Whether the channel has logprobs matters, and whether FastDeploy's own message can hold the batch.
    """
    return _chosen(logprobs, too_many_for_stock)[0]


def dialect_of(channel: Channel, batch: int, layout: Layout) -> tuple[Dialect, int]:
    """Dialect that a save op sends on a channel, and the number of its service; 0: none is sent."""
    return _chosen(has_logprobs(channel), batch > most_requests(channel, layout))


def _chosen(logprobs: bool, too_many_for_stock: bool) -> tuple[Dialect, int]:
    dialect: str = DIALECT.of(environment_variable(DIALECT.name))
    if dialect != "compact" and (dialect != "auto" or not (logprobs or too_many_for_stock)):
        return _NAMED.get(dialect, "packed"), 0
    words, number = _announced(environment_variable(PEER.name) or "")
    return ("compact", number) if dialect == "compact" or COMPACT in words else ("packed", 0)
