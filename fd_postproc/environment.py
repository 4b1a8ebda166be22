"""Every environment variable that is read: its default, its values, their check.  One table, `VARIABLES`.

An empty variable counts as unset.  ``docs/environment.md`` says who reads which one, and what
it means.  Standard library only: FastDeploy loads this with the plug-in.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

VARIABLES: dict[str, Variable] = {}
"""By name, in the order of ``docs/environment.md``."""


class Variable:
    """One environment variable.

    Parameters
    ----------
    name : str
    default : str
        The text that an unset or empty variable stands for.
    fault : str
        What is wrong with an invalid value, as the end of a sentence.
    parse : callable, optional
        Makes the value from a text; raises ValueError if it is invalid.  Default: any text is its own value.
    """

    def __init__(
        self, name: str, default: str = "", fault: str = "", parse: Callable[[str], Any] = str
    ) -> None:
        self.name, self.default, self.fault, self._parse = name, default, fault, parse
        self._usual = parse(default)
        self._last = default, self._usual  # a text and its value: most are asked for at every step
        VARIABLES[name] = self

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        """What it is set to now; empty if it is unset."""
        return os.environ.get(self.name, "")

    @property
    def value(self) -> Any:
        """Its value now.

        Raises
        ------
        ValueError
            If its text is invalid; the error names variable and value, and says what is valid.
        """
        return self.of(self.text)

    def of(self, text: str | None) -> Any:
        """The value that a text means, or the default if there is none."""
        if not text:
            return self._usual
        known, value = self._last
        if text != known:
            try:
                value = self._parse(text)
            except ValueError:
                raise ValueError(f"{self.name}={text!r} {self.fault}") from None
            self._last = text, value
        return value


def is_on(switch: Variable) -> bool:
    """Whether a switch is on: set to anything except nothing and ``0``."""
    return bool(switch.value)


def _number(pattern: str, least: float, most: float) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(pattern, text) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return parse


def _queue_id(text: str) -> int:
    return _number(r"\s*-?[0-9]{1,10}\s*", -(1 << 31), (1 << 31) - 1)(text) if text.strip() else 1


def _message_id(text: str) -> int:
    if int(text) == 2:
        raise ValueError
    return _number(r"\s*[0-9]{1,10}\s*", 0, (1 << 31) - 1)(text)


def _permissions(text: str) -> int:
    mode = int(text, 8)
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError
    return mode


def _one_of(*names: str, any_case: bool = False) -> Callable[[str], str]:
    def parse(text: str) -> str:
        name = text.strip().lower() if any_case else text
        if name not in names:
            raise ValueError
        return name

    return parse


def _peer(text: str) -> bool:
    if text and COMPACT not in text.split(","):
        raise ValueError
    return bool(text)


def _period(text: str) -> float:
    seconds = float(text) if text.strip() else math.inf
    if not seconds > 0:
        raise ValueError
    return seconds


def _silence(text: str) -> float:
    if text.strip().lower() in ("0", "off"):
        return math.inf
    seconds = float(text)
    if not seconds >= 0.1:
        raise ValueError
    return seconds


def _switch(text: str) -> bool:
    return text.strip() not in ("", "0")


def _unless_off(text: str) -> bool:
    return text.strip().lower() not in ("0", "off")


DIALECTS = ("auto", "packed", "legacy", "compact")
CUDA_WAYS = ("mapped", "copy", "watch")
COMPACT = "compact/1"
"""Word in ``FD_POSTPROC_PEER`` by which a receiver's process says that it understands compact frames."""
STREAMS = "streams/2"
"""The word by which FastDeploy's engine says that it understands frames through the ZeroMQ socket."""
DRAFTS = "streams/2+drafts"
"""The word by which it says that those of speculative decoding are to come there, too."""
IN_FRAMES = "masks/2"
"""The word by which it says that it takes sampling masks out of the compact frame of their step."""

# ---- at run time -------------------------------------------------------------------------------------------

QUEUE_ID = Variable("INFERENCE_MSG_QUEUE_ID", "1", "is not a decimal 32-bit number", _queue_id)
MESSAGE_ID = Variable(
    "INFERENCE_MSG_ID", "1", "is not a decimal number, 0 to 2147483647, other than 2", _message_id
)
PEER = Variable("FD_POSTPROC_PEER", "", f"does not name {COMPACT}, all that this version understands", _peer)
DIALECT = Variable("FD_POSTPROC_DIALECT", "auto", f"is not one of {', '.join(DIALECTS)}", _one_of(*DIALECTS))
CHECKSUM = Variable("FD_POSTPROC_CHECKSUM", "1", parse=_unless_off)
QUEUE_MODE = Variable(
    "FD_POSTPROC_QUEUE_MODE",
    "600",
    "is not octal permission bits with which the queue's owner can read and write: 600 (the owner alone) to "
    "666 (everybody)",
    _permissions,
)
CUDA_BUFFERS = Variable(
    "FD_POSTPROC_CUDA_BUFFERS", "8", "is not a number from 3 to 64", _number("[0-9]{1,2}", 3, 64)
)
CUDA_WAY = Variable(
    "FD_POSTPROC_CUDA_WAY", "mapped", f"is not one of {', '.join(CUDA_WAYS)}", _one_of(*CUDA_WAYS)
)
SIDE_STREAM = Variable("FD_POSTPROC_CUDA_SIDE_STREAM", parse=_switch)
DISABLE = Variable("FD_POSTPROC_DISABLE", parse=_switch)
API = Variable("FD_POSTPROC_API", "1", parse=_unless_off)
LOG_STATS = Variable("FD_POSTPROC_LOG_STATS", "", "is not a number of seconds above 0", _period)
SILENCE = Variable("FD_POSTPROC_SILENCE", "4", "is not a number of seconds from 0.1, or off", _silence)
V1_SCHEDULER = Variable("ENABLE_V1_KVCACHE_SCHEDULER", "1", "is not a number such as 0 or 1", int)
FORCE = Variable("FD_POSTPROC_FORCE", parse=_switch)
KEEP_STALE = Variable("FD_POSTPROC_KEEP_STALE", parse=_switch)
KEEP_POLLING = Variable("FD_POSTPROC_KEEP_POLLING", parse=_switch)
GC = Variable(
    "FD_POSTPROC_GC", "on", "is not one of on, off: it has no effect", _one_of("on", "off", any_case=True)
)
FASTDEPLOY = Variable("FD_POSTPROC_FASTDEPLOY")
FLIGHT = Variable(
    "FD_POSTPROC_FLIGHT",
    "8",
    "is not a number of MiB, 1 to 1024, or 0 for off",
    _number("[0-9]{1,4}", 0, 1024),
)
FLIGHT_FOLDER = Variable("FD_POSTPROC_FLIGHT_FOLDER")
FLIGHT_TOKENS = Variable("FD_POSTPROC_FLIGHT_TOKENS", parse=_switch)

# ---- at build time, in the tests ---------------------------------------------------------------------------

for _name in (
    *("FD_POSTPROC_TRACE", "FD_POSTPROC_DOUBLE", "FD_POSTPROC_GOLDEN_STEPS"),
    *("FD_POSTPROC_CUDA_HEADERS", "FD_POSTPROC_TEST_DRIVER"),
):
    Variable(_name)
