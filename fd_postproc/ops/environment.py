"""Environment variables that the ops read in every call, by a fast look-up in C."""

from __future__ import annotations

from .._core import environment_variable, has_logprobs, most_requests
from ..environment import COMPACT, DIALECT, MESSAGE_ID, PEER, service_number
from ..layout import Channel, Dialect, Layout

_NAMED: dict[str, Dialect] = {"packed": "packed", "legacy": "legacy", "compact": "compact"}


def message_id() -> int:
    """``INFERENCE_MSG_ID``: the number whose sign says whether the worker continues; default 1.

    2 is not allowed: a get op reports "nothing there" as -2.  (FastDeploy's ops abort on a bad value.)
    """
    number: int = MESSAGE_ID.of(environment_variable(MESSAGE_ID.name))
    return number


def peer_understands(word: str) -> bool:
    """Whether ``FD_POSTPROC_PEER``, which the reading side sets, contains a word."""
    return word in (environment_variable(PEER.name) or "").split(",")


def service() -> int:
    """Number of the service that compact frames belong to, as its engine has announced it; 0: none."""
    return service_number(environment_variable(PEER.name) or "")


def send_dialect(logprobs: bool, too_many_for_stock: bool) -> Dialect:
    """Dialect that the save ops send: ``FD_POSTPROC_DIALECT``, or what ``auto`` means here.

    Whether the channel has logprobs matters, and whether FastDeploy's own message can hold the batch.
    """
    dialect: str = DIALECT.of(environment_variable(DIALECT.name))
    if dialect != "auto":
        return _NAMED[dialect]
    return "compact" if peer_understands(COMPACT) and (logprobs or too_many_for_stock) else "packed"


def dialect_of(channel: Channel, batch: int, layout: Layout) -> Dialect:
    """Dialect that a save op sends on a channel."""
    return send_dialect(has_logprobs(channel), batch > most_requests(channel, layout))
