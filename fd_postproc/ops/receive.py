"""The get ops: one message from a queue into the caller's tensors."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from .._core import Receiver, environment_variable, tensor_elements
from ..core.layout import GPU, Channel, Layout, checked_layout
from ..core.tensors import host_address
from ..errors import MalformedMessage, QueueRemoved
from ..support.checks import kind_of, shown, whole_number
from ..support.environment import QUEUE_MODE
from .arguments import is_first
from .log_throttle import Backoff, Complaints, frames_text, last_sender_text
from .pool import Pool

log = logging.getLogger("fd_postproc")


def get_output(x: Any, rank_id: int, wait_flag: bool, *, layout: Layout = GPU) -> Any:
    """Receive a ``plain`` message.

    Parameters
    ----------
    x : tensor, int64, 2 + max_batch elements
        Written: stop flag, batch, then one token (or code) per request.
    rank_id : int
        If above 0, nothing is received and `x` stays as it is.
    wait_flag : bool
        Whether to wait for a message, or to check only once.
    layout : Layout, optional
        Geometry of the sender's build.

    Returns
    -------
    tensor
        `x`.

    Raises
    ------
    TypeError, ValueError
        If `x` is not such a tensor.
    QueueError
        If the queue cannot be opened or read.
    """
    if is_first(rank_id):
        _receive("plain", (x,), wait_flag, layout)
    return x


def get_output_ep(x: Any, rank_id: int, wait_flag: bool, *, layout: Layout = GPU) -> Any:
    """Receive a ``plain`` message like `get_output`, whatever the rank."""
    _receive("plain", (x,), wait_flag, layout)
    return x


def get_output_topk(
    x: Any, scores: Any, ranks: Any, k: int, rank_id: int, wait_flag: bool, *, layout: Layout = GPU
) -> list[Any]:
    """Receive a ``topk`` message, of either dialect.

    Parameters
    ----------
    x : tensor, int64, 2 + max_batch * (top_k + 1) elements
        Written: stop flag; header word (batch, and in the packed dialect columns << 16); then rows of token
        ids, dense in the packed dialect, ``top_k + 1`` apart in the legacy one.
    scores : tensor, float32, max_batch * (top_k + 1) elements
        Log-probabilities, in rows of the same form.
    ranks : tensor, int64, max_batch elements
    k : int
        The legacy dialect copies ``k + 1`` columns; the packed one copies those that were sent.
    rank_id : int
        Ignored, as in FastDeploy.
    wait_flag : bool
        Whether to wait for a message, or to check only once.
    layout : Layout, optional

    Returns
    -------
    list of tensor
        ``[x, scores, ranks]``.

    Raises
    ------
    TypeError, ValueError
        If a tensor does not fit, or `k` is outside 0..top_k.
    QueueError
        If the queue cannot be opened or read.
    """
    _receive("topk", (x, scores, ranks), wait_flag, layout, k)
    return [x, scores, ranks]


def speculate_get_output(
    x: Any, rank_id: int, wait_flag: bool, get_each_rank: bool, *, layout: Layout = GPU
) -> Any:
    """Receive a ``spec`` message.

    Parameters
    ----------
    x : tensor, int64, 2 + spec_batch * (1 + max_draft) elements
        Written: the whole message, unchanged: stop flag, batch, counts, then `max_draft` tokens per slot,
        live or not.  If the message was sent shorter, elements beyond its end keep their old values.
    rank_id : int
    wait_flag : bool
        Whether to wait for a message, or to check only once.
    get_each_rank : bool
        If false, nothing is received when `rank_id` is above 0.
    layout : Layout, optional

    Returns
    -------
    tensor
        `x`.

    Raises
    ------
    TypeError, ValueError
        If `x` is not such a tensor.
    QueueError
        If the queue cannot be opened or read.
    """
    if is_first(rank_id) or get_each_rank:
        _receive("spec", (x,), wait_flag, layout)
    return x


def speculate_get_output_topk(
    output_tokens: Any,
    output_scores: Any,
    output_ranks: Any,
    real_k: int,
    rank_id: int,
    wait_flag: bool,
    *,
    layout: Layout = GPU,
) -> list[Any]:
    """Receive a ``spec_topk`` message, of either dialect.

    Parameters
    ----------
    output_tokens : tensor, int64, 3 + max_batch + max_batch * max_draft * (top_k + 1) elements
        Written: stop flag; header word (flag, and in the packed dialect columns << 8); batch; counts; then
        the accepted rows of every slot, ``top_k + 1`` apart, as many columns as were sent.
    output_scores : tensor, float32, max_batch * max_draft * (top_k + 1) elements
    output_ranks : tensor, int64, max_batch * max_draft elements
    real_k : int
        The legacy dialect copies ``real_k + 1`` columns; the packed one copies those that were sent.
    rank_id : int
        Ignored, as in FastDeploy.
    wait_flag : bool
        Whether to wait for a message, or to check only once.
    layout : Layout, optional

    Returns
    -------
    list of tensor
        ``[output_tokens, output_scores, output_ranks]``.

    Raises
    ------
    TypeError, ValueError
        If a tensor does not fit, or `real_k` is outside 0..top_k.
    QueueError
        If the queue cannot be opened or read.
    """
    _receive("spec_topk", (output_tokens, output_scores, output_ranks), wait_flag, layout, real_k)
    return [output_tokens, output_scores, output_ranks]


def receive_stats() -> dict[str, int | float]:
    """Counters of all get ops of this process, summed; see `fd_postproc.Receiver.stats`."""
    return _receivers.stats()


_ARGUMENT_NAMES = {
    "plain": ("x",),
    "topk": ("x", "scores", "ranks"),
    "spec": ("x",),
    "spec_topk": ("output_tokens", "output_scores", "output_ranks"),
}
_DTYPES = ("int64", "float32", "int64")
_HEADER_WORDS = {"plain": 2, "topk": 2, "spec": 2, "spec_topk": 3}

_receivers: Pool[Receiver] = Pool(Receiver)
_complaints = Complaints(lambda text: log.warning("%s", text))
_removals = Backoff()


def _receive(channel: Channel, tensors: Sequence[Any], wait: bool, layout: Layout, k: int = 0) -> None:
    """One message into `tensors`, or the sentinel into the first."""
    if layout is not GPU:
        checked_layout(layout)
    if type(wait) is not bool and (wait is None or not hasattr(wait, "__bool__")):
        raise TypeError(f"wait_flag must be True or False, not {shown(wait)} ({kind_of(wait)})")
    if type(k) is not int or not 0 <= k <= layout.top_k:
        k = whole_number(k, "k", 0, layout.top_k, "the layout's top_k is the most")
    addresses = [0, 0, 0]
    needed = tensor_elements(channel, layout)
    for place, tensor in enumerate(tensors):
        name = _ARGUMENT_NAMES[channel][place]
        addresses[place] = host_address(tensor, name, _DTYPES[place], needed[place])
    which = (channel, environment_variable("INFERENCE_MSG_QUEUE_ID"), layout)
    receiver = _receivers.take(which, lambda: Receiver(channel, layout=layout, mode=QUEUE_MODE.value))
    gone = False
    try:
        received = receiver._receive_into(addresses[0], addresses[1], addresses[2], k + 1, wait)
        if received > 1:
            _tell_frames(receiver)
        if received & 1:
            return
    except MalformedMessage as error:
        _tell_refused(receiver, error)
    except QueueRemoved as error:
        gone = True  # the next call makes a new queue
        _complaints.tell(f"{channel} removed", str(error))
        if wait:
            time.sleep(_removals.failed())  # 0 s, unless it is removed again and again
    finally:
        _receivers.give_back(which, receiver, gone)
    words = (ctypes.c_int64 * _HEADER_WORDS[channel]).from_address(addresses[0])
    words[0] = -2
    words[1:] = [0] * (len(words) - 1)


def _tell_frames(receiver: Receiver) -> None:
    for trouble, count in receiver._news().items():
        if count:
            text = partial(frames_text, trouble, receiver)
            _complaints.tell(f"{receiver.channel} {trouble}", text, count)


def _tell_refused(receiver: Receiver, error: MalformedMessage) -> None:
    msqid, text = receiver.msqid, f"{error}; fd_postproc.ops.receive_stats() counts them"
    _complaints.tell(f"{error.channel} {error.field}", lambda: f"{text}; {last_sender_text(msqid)}")
