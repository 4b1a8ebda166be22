"""Whether the save kernel may be used in this process: it proves itself first.

What is saved from a CUDA device is at first made both ways: copied to the host and packed there, which is
what is sent, and by the kernel, whose bytes are compared.  A kind of save whose messages were equal `ENOUGH`
times is the kernel's from then on; of those, too, about one in `ONE_IN` is made both ways.  One difference,
or an error of CUDA, ends the kernel's use in this process.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._core import _op_message
from ..core.layout import Channel
from ..errors import NotForKernel, Refusal, UnfitNumber
from ..support.environment import CUDA
from .arguments import Given
from .environment import message_id

log = logging.getLogger("fd_postproc")

ENOUGH = 32
"""Equal messages of one kind of save after which the kernel's are sent."""
ONE_IN = 1000
"""Saves after that of which about one is compared."""
_CAPTURES = range(900, 908)  # the driver's errors during captures: no fault of the kernel


class State(NamedTuple):
    """Whether the kernel's messages are sent, and why they are no longer, or empty; the channel of a save."""

    is_used: bool
    why_off: str
    channel: Channel


class Comparison:
    """A save that is made both ways.

    `kept` has the kernel's message once the save `is_finished`, or `error` says why there is none.  The CPU's
    is `expected`, or why that refused; it is packed behind the sending.
    """

    def __init__(self, proof: Proof, kind: tuple[Any, ...], op: str, batch: int, kept: Any) -> None:
        self._proof, self.kind, self.op, self.batch, self.kept = proof, kind, op, batch, kept
        self.lane = kind[0]
        self.expected: bytes | Refusal | None = None
        self.error: Exception | None = None
        self.is_finished = False

    def expect(self, given: Given, goes_on: bool) -> None:
        """Pack the message as the CPU does, from tensors in host memory; then compare."""
        op, inputs, batch, width, rows, cols, layout, flag, skip_prefill = given
        self.expected = _op_message(
            op, inputs, batch, cols, width, rows, layout=layout, flag=flag, skip_prefill=skip_prefill,
            stop_flag=message_id() * (1 if goes_on else -1), dialect=self.lane.dialect, sealed=False,
            **self.lane.identity,
        )  # fmt: skip
        self.judge()

    def judge(self) -> None:
        """Compare, once both are there."""
        if self.is_finished and self.expected is not None:
            self._proof.judge(self)
            self.expected = None


class Proof:
    """This process's knowledge of the kernel.

    Attributes
    ----------
    mode : str
        ``FD_POSTPROC_CUDA``: ``"auto"``, ``"1"`` or ``"0"``; empty before the first save.
    why_off : str
        Why the kernel is not used; empty if it may be.
    compared, differed : int
        Messages that were compared, and how many of them were not equal.
    listeners : list
        Called with a `State` at the first save, and whenever it changes.
    """

    def __init__(self) -> None:
        self.mode, self.why_off = "", ""
        self.compared = self.differed = 0
        self.listeners: list[Callable[[State], None]] = []
        self._left: dict[tuple[Any, ...], int] = {}  # by kind of save: equal messages that are still to come
        self._used = False
        self._random = random.Random()
        self._until_next = self._gap()

    def begin(self, channel: Channel) -> bool:
        """Ask the environment, at the first save; whether the kernel may be used at all."""
        self.mode = CUDA.value
        if self.mode == "0":
            self.why_off = f"{CUDA}=0"
            return False
        self._tell(self.mode == "1", channel)
        return True

    def comparison(self, extension: Any, lane: Any, job: Any, batch: int) -> Comparison | None:
        """The comparison that this save needs; None if the kernel's message is sent."""
        if self.mode == "1":
            return None
        kind = lane, job.forms, batch.bit_length()
        if self._left.get(kind, ENOUGH) <= 0:
            self._until_next -= 1
            if self._until_next > 0:
                return None
            self._until_next = self._gap()
        return Comparison(self, kind, job.op, batch, extension.Kept(lane))

    def judge(self, one: Comparison) -> None:
        """Take account of a comparison whose two messages are there."""
        if self.why_off:
            return
        self.compared += 1
        difference = _difference(one)
        if difference:
            self.differed += 1
            text = f"{one.op} ({one.lane.dialect}, a batch of {one.batch}): {difference}"
            self.turn_off(f"its message is not the CPU's: {text}", one.lane.channel)
            return
        left = self._left.get(one.kind, ENOUGH)
        self._left[one.kind] = left - 1
        if left == 1:
            log.info(
                "the save kernel made %d messages of %s (%s, batches like %d) as the CPU does: it is used",
                ENOUGH, one.op, one.lane.dialect, one.batch,
            )  # fmt: skip
            if not self._used:
                self._tell(True, one.lane.channel)

    def forgives(self, error: Exception, channel: Channel) -> bool:
        """Whether saves go on from the host after an error; one of CUDA's turns the kernel off."""
        if self.mode == "1" or getattr(error, "code", None) in _CAPTURES:
            return False
        if not isinstance(error, NotForKernel):
            self.turn_off(str(error), channel)
        return True

    def turn_off(self, why: str, channel: Channel) -> None:
        """End the kernel's use in this process."""
        if self.why_off:
            log.error("the save kernel is off, and: %s", why)
            return
        self.why_off = why
        log.error(
            "the save kernel is not used any more in this process, tensors are copied to the host: %s", why
        )
        self._tell(False, channel)

    def _tell(self, is_used: bool, channel: Channel) -> None:
        self._used = is_used
        for listener in self.listeners:
            try:
                listener(State(is_used, self.why_off, channel))
            except Exception:  # a report must not cost a step
                log.exception("whether the save kernel is used could not be reported")

    def _gap(self) -> int:
        """Saves until the next one that is compared; random, so that no period of theirs hides a fault."""
        return self._random.randrange(1, 2 * ONE_IN)


def _difference(one: Comparison) -> str:
    """The difference between the kernel's message and the CPU's; empty if there is none."""
    if isinstance(one.expected, Refusal):
        return "" if isinstance(one.error, UnfitNumber) else f"the CPU refuses it ({one.expected.reason})"
    if one.error is not None:
        return str(one.error)
    made, expected = one.kept.payload, one.expected
    if made == expected:
        return ""
    if made is None or expected is None:
        return "there is none"
    size = min(len(made), len(expected))
    words, others = (np.frombuffer(message, "<u4", size // 4) for message in (made, expected))
    at = np.flatnonzero(words != others)
    if not at.size:
        return f"it has {len(made)} bytes, the CPU's {len(expected)}"
    k = int(at[0])
    return (
        f"word {k} is {words[k]:#010x}, the CPU's {others[k]:#010x} ({at.size} of {size // 4} words differ)"
    )
