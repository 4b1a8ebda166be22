"""Checks before the first message whether a queue can take this worker's largest one."""

from __future__ import annotations

import logging

from ..._core import LEAST_LIMIT, encode, most_requests, payload_size
from ...core.layout import GPU, Channel, Dialect
from ...ops.needed_limits import Load, example_step, wanted_limits
from ...queues import existing, kernel_limits, locate

_OTHERWISE = "run fd_postproc on the engine side, too: compact frames need no limits"


def largest_message(channel: Channel, batch: int, dialect: Dialect | None) -> int:
    """Largest message of this worker in bytes; of FastDeploy's own op if `dialect` is None.

    `batch` is its ``max_num_seqs``.  ``max_logprobs`` does not matter: only batch and tokens move the end of
    a packed or legacy message, and a compact frame is cut to fit.
    """
    if dialect is None:
        return payload_size(channel)
    if dialect == "compact":
        return LEAST_LIMIT
    load = Load(min(batch, most_requests(channel)), GPU.max_draft, GPU.top_k + 1)
    return len(encode(example_step(channel, load), dialect))


def check_room(channel: Channel, batch: int, dialect: Dialect | None, log: logging.Logger) -> None:
    """Log one ERROR, with the remedy, if the queue cannot take the largest message."""
    needed = largest_message(channel, batch, dialect)
    limits, queue = kernel_limits(), existing(locate(channel))
    holds = limits.msgmnb if queue is None else queue.max_size  # what a new queue gets, or this one got
    if needed <= min(limits.msgmax, holds):
        return
    if dialect is not None:
        whose, then = (
            f"{dialect} messages",
            "such a step cannot be sent, and the worker ends with MessageTooBig",
        )
    elif needed > limits.msgmax:
        whose, then = "messages of FastDeploy's own op", "every step is lost, and clients wait forever"
    else:
        whose, then = "messages of FastDeploy's own op", "the worker waits forever"
    anew = "" if queue is None else ", remove the queue (it keeps the size it was made with)"
    log.error(
        "fd_postproc: %s of %d bytes on %s (%d requests) do not fit: kernel.msgmax = %d, and the queue holds "
        "%d: %s. Stop the service, as root: sysctl -w %s (docker run: --sysctl for each)%s and start it%s",
        whose, needed, channel, batch, limits.msgmax, holds, then,
        " ".join(wanted_limits(payload_size(channel), limits)), anew,
        "" if dialect is None else f"; or {_OTHERWISE}",
    )  # fmt: skip
