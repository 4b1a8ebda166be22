"""What the environment tells the ops."""

from __future__ import annotations

import os
import re

from .._core import environment_variable, has_logprobs, most_requests
from ..checks import permission_bits
from ..layout import Layout

DIALECTS = ("auto", "packed", "legacy", "compact")
PEER = "compact/1"
"""Word in ``FD_POSTPROC_PEER`` by which a receiver's process tells that it understands compact frames."""


def queue_mode() -> int:
    """Permission bits of a queue that an op makes: ``FD_POSTPROC_QUEUE_MODE``, octal; 0600."""
    text = os.environ.get("FD_POSTPROC_QUEUE_MODE") or "600"
    try:
        return permission_bits(int(text, 8))
    except ValueError:
        raise ValueError(
            f"FD_POSTPROC_QUEUE_MODE={text!r} is not octal permission bits with which the queue's owner "
            "can read and write: 600 (the owner alone) to 666 (everybody)"
        ) from None


def message_id() -> int:
    """``INFERENCE_MSG_ID``: the number whose sign tells whether the worker goes on; 1.

    2 is taken: a get op reports "nothing there" by -2.  (FastDeploy's ops abort the process on a bad value.)
    """
    text = environment_variable("INFERENCE_MSG_ID")
    if text is None:
        return 1
    if not re.fullmatch(r"\s*[0-9]{1,10}\s*", text) or int(text) >= 1 << 31 or int(text) == 2:
        raise ValueError(f"INFERENCE_MSG_ID={text!r} is not a decimal number, 0 to 2147483647, other than 2")
    return int(text)


def send_dialect(logprobs: bool, too_many_for_stock: bool) -> str:
    """Dialect that the save ops send: ``FD_POSTPROC_DIALECT``, or what ``auto`` means for this message.

    Parameters
    ----------
    logprobs : bool
        Whether the channel carries logprobs.
    too_many_for_stock : bool
        Whether the batch is beyond what FastDeploy's own message can hold.
    """
    dialect = environment_variable("FD_POSTPROC_DIALECT")
    if dialect is None:
        dialect = "auto"
    if dialect not in DIALECTS:
        raise ValueError(f"FD_POSTPROC_DIALECT={dialect!r} is not one of {', '.join(DIALECTS)}")
    if dialect != "auto":
        return dialect
    understood = PEER in (environment_variable("FD_POSTPROC_PEER") or "").split(",")
    return "compact" if understood and (logprobs or too_many_for_stock) else "packed"


def dialect_of(channel: str, batch: int, layout: Layout) -> str:
    """Dialect that a save op sends on a channel."""
    return send_dialect(has_logprobs(channel), batch > most_requests(channel, layout))


def cuda_buffers() -> int:
    """``FD_POSTPROC_CUDA_BUFFERS``: saves from a CUDA device that may be under way at a time; 8."""
    text = os.environ.get("FD_POSTPROC_CUDA_BUFFERS") or "8"
    if not re.fullmatch(r"[0-9]{1,2}", text) or not 3 <= int(text) <= 64:
        raise ValueError(f"FD_POSTPROC_CUDA_BUFFERS={text!r} is not a number from 3 to 64")
    return int(text)


WAYS = ("mapped", "copy", "watch")


def cuda_way() -> str:
    """``FD_POSTPROC_CUDA_WAY``: how a message leaves a CUDA device; ``mapped``."""
    way = os.environ.get("FD_POSTPROC_CUDA_WAY", "mapped")
    if way not in WAYS:
        raise ValueError(f"FD_POSTPROC_CUDA_WAY={way!r} is not one of {', '.join(WAYS)}")
    return way
