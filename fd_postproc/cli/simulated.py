"""The worker of ``fd-postproc worker-sim``: a Sender's messages, each put into the queue by hand.

So one can be left out, doubled, changed or stopped half-way.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from .. import queues
from .._core import Sender
from ..errors import MessageTooBig, QueueError, QueueMissing, QueueRemoved
from .queue_io import RawQueue, Target
from .terminal import CommandError, note

if TYPE_CHECKING:
    from .._core import Step
    from ..layout import Channel, Dialect, Layout

Message: TypeAlias = tuple[int, bytes]
"""mtype and payload."""

_LOOK_S = 0.02
_SLOWEST_S = 2.0


class SimulatedWorker:
    """Simulated worker: sends steps to a queue, and loses refused ones as FastDeploy's save ops do.

    Parameters
    ----------
    target : Target
    channel : str
    dialect : str
    layout : Layout
    timeout : float or None
        Seconds that a full queue, or a removed one, is waited for; None: forever.

    Attributes
    ----------
    pace : float
        Seconds from one step to the next.
    growth : float
        What `pace` is multiplied with after each step.
    sent : int
        Steps that are on their way.
    change : function or None
        Makes a step's messages other ones before they are sent.
    """

    def __init__(
        self, target: Target, channel: Channel, dialect: Dialect, layout: Layout, timeout: float | None
    ) -> None:
        self.channel, self.dialect, self.layout = channel, dialect, layout
        self.pace, self.growth = 0.0, 1.0
        self.change: Callable[[Step, list[Message]], list[Message]] | None = None
        self._timeout = timeout
        self._key = target.key
        self._refused = 0
        self.sent = 0
        self._messages = 0
        self._connect(target)

    def _connect(self, target: Target) -> None:
        self.queue = RawQueue(target)
        self.restart()

    def restart(self) -> None:
        """Restart as a new process: another sender number, frames from 0."""
        self._sender = Sender(self.channel, key=self._key, dialect=self.dialect, layout=self.layout)

    def close(self) -> None:
        self._sender.close()

    def messages(self, step: Step) -> list[Message]:
        """The messages of a step, which take a frame's number.

        Raises
        ------
        MessageTooBig
            If the kernel's limits do not let a stock message through.
        """
        return self._sender._messages(step)

    def send(self, step: Step) -> None:
        """Send a step; a refused one is lost and counted, as in FastDeploy's own ops."""
        try:
            self._send(step)
            self.sent += 1
        except QueueRemoved:
            note(f"Queue {self.queue.msqid} was removed; waiting for its reader to make a new one.")
            self._find_again()
            self._send(step)
            self.sent += 1
        except MessageTooBig as error:
            self._lost(error.strerror or str(error))

    def _send(self, step: Step) -> None:
        messages = self.messages(step)
        if self.change is not None:
            messages = self.change(step, messages)
        for mtype, payload in messages:
            self.put(mtype, payload)

    def put(self, mtype: int, payload: bytes) -> None:
        """Put one message into the queue.

        Raises
        ------
        MessageTooBig
            If the kernel, or the queue, does not let so many bytes through.
        """
        limit = min(queues.kernel_limits().msgmax, self.queue.max_bytes)
        if len(payload) > limit:  # the queue's own limit would be waited for, as if it were full
            raise MessageTooBig(
                errno.EINVAL, f"a message of {len(payload):,} bytes was refused: one may have {limit:,}"
            )
        self.queue.put_waiting(payload, mtype, self._timeout)
        self._messages += 1

    def _lost(self, why: str) -> None:
        self._refused += 1
        if self._refused == 1:
            note(f"A step was lost: {why}")

    def _find_again(self) -> None:
        began = time.monotonic()
        while True:
            try:
                msqid = queues.open_queue(self._key, create=False)
                self._connect(Target(msqid, self._key))
                return
            except (QueueMissing, QueueRemoved):
                if self._timeout is not None and time.monotonic() - began > self._timeout:
                    raise CommandError(
                        f"nobody made a queue with key {queues.key_text(self._key)} for {self._timeout:g} s"
                    ) from None
                time.sleep(_LOOK_S)

    def next_pause(self) -> float:
        """Seconds until the next step."""
        pause = self.pace
        self.pace = min(self.pace * self.growth, max(_SLOWEST_S, self.pace))
        return pause

    def remove_queue(self) -> None:
        """Remove the queue, as ``ipcrm`` does."""
        queues.remove_queue(self.queue.msqid)

    def account(self) -> str:
        """Summary of sent and lost messages for the user."""
        from .tables import plural

        text = f"{plural(self.sent, 'step')} in {plural(self._messages, 'message')} went to the queue"
        try:
            text += f"; {self.queue.waiting:,} of them wait there"
        except QueueError:
            text += ", which is gone"
        return text + (f"; {plural(self._refused, 'step')} lost: too long." if self._refused else ".")
