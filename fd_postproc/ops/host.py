"""Saving from tensors in host memory.  The message is in its queue when the call returns."""

from __future__ import annotations

from .._core import Sender, environment_variable
from ..core.layout import Channel, Dialect, Layout
from ..errors import QueueRemoved, UnfitNumber
from ..support.environment import QUEUE_MODE
from .arguments import Given, say
from .device import saves
from .environment import dialect_of, message_id
from .pool import Pool
from .sent import sent
from .table import SAVE_OPS
from .watch import waiting, watch

senders: Pool[Sender] = Pool(Sender)
waiting.append(senders.members)


def _sender(channel: Channel, dialect: Dialect, layout: Layout, service: int) -> Sender:
    made = Sender(channel, dialect=dialect, layout=layout, mode=QUEUE_MODE.value)
    made._service = service
    return made


def save(given: Given, goes_on: bool) -> None:
    """Send a save op's tensors, which are all in host memory."""
    op, inputs, batch, width, rows, cols, layout, flag, skip_prefill = given
    channel = SAVE_OPS[op].channel
    ident = message_id()
    dialect, service = dialect_of(channel, batch, layout)
    if saves.lanes:
        saves.send_all()  # what was saved before is sent before
    watch()
    which = (channel, environment_variable("INFERENCE_MSG_QUEUE_ID"), dialect, layout, service)
    sender = senders.take(which, lambda: _sender(channel, dialect, layout, service))
    gone = False
    try:
        refusal = sender._save(
            op,
            inputs,
            batch,
            cols,
            width,
            rows,
            stop_flag=ident if goes_on else -ident,
            flag=flag,
            skip_prefill=skip_prefill,
        )
    except QueueRemoved:
        gone = True  # the next call makes a new queue
        raise
    else:
        sent.count += refusal is None
    finally:
        senders.give_back(which, sender, gone)
    if refusal is not None:
        raise UnfitNumber(say(op, width, cols, refusal))
