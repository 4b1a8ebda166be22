"""The table of all environment variables, `VARIABLES`: default, values, check.

An empty variable counts as unset.  ``docs/environment.md`` says who reads which one, and what
it means.  Standard library only: FastDeploy loads this with the plug-in.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

PREFIX = "FD_POSTPROC_"
VARIABLES: dict[str, Variable] = {}
"""All variables by name, in the order of ``docs/environment.md``."""


class Variable:
    """One environment variable.

    An unset or empty one stands for the text `default`.  `fault` is what is wrong with an invalid value, as
    the end of a sentence, and `parse` makes the value from a text, or raises ValueError; without a fault its
    text is the end.
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
        """The text that it is set to; empty if it is unset."""
        return os.environ.get(self.name, "")

    @property
    def value(self) -> Any:
        """The current value; the ValueError of an invalid one names it, and says what is valid."""
        return self.of(self.text)

    def valid(self, report: Callable[[str], None]) -> Any:
        """The current value; the default if that is invalid, with a sentence for `report`."""
        try:
            return self.value
        except ValueError as error:
            report(f"fd_postproc: {error}; the default holds")
            return self._usual

    @property
    def complaint(self) -> str:
        """The error in its current text; empty if it is valid."""
        try:
            _ = self.value
        except ValueError as error:
            return str(error)
        return ""

    def of(self, text: str | None) -> Any:
        """The value of a text, or the default if the text is invalid."""
        if not text:
            return self._usual
        known, value = self._last
        if text != known:
            try:
                value = self._parse(text)
            except ValueError as error:
                raise ValueError(f"{self.name}={text!r} {self.fault or error}") from None
            self._last = text, value
        return value


WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
"""The words that set a switch, in any case."""


def _switch(text: str) -> bool:
    try:
        return WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError from None


class Switch(Variable):
    """Environment variable with two values, on and off.

    `safe` is what an unreadable text means where nothing may be raised: in FastDeploy's processes.
    """

    def __init__(self, name: str, default: str = "0", *, safe: bool = False) -> None:
        self.safe = safe
        super().__init__(
            name, default, "is neither yes (1, true, yes, on) nor no (0, false, no, off)", _switch
        )


def is_on(switch: Switch) -> bool:
    """Whether a switch is on; its safe meaning if its text is unreadable.  Never raises."""
    try:
        return bool(switch.value)
    except ValueError:
        return switch.safe


def settle_switches() -> list[str]:
    """Set each unreadable switch to its safe meaning, for this process and those that it starts.

    Sentences say what was wrong: of each of them, of names that have no effect, of an unreadable record.
    """
    said = [f"{name} {fault}" for name, fault in misspelt().items()]
    if complaint := KNOWN.complaint:
        said.append(complaint)
    for switch in VARIABLES.values():
        if isinstance(switch, Switch) and (complaint := switch.complaint):
            said.append(f"{complaint}: taken for {'yes' if switch.safe else 'no'}, the safe meaning")
            os.environ[switch.name] = str(int(switch.safe))
    return said


def misspelt() -> dict[str, str]:
    """Errors about names in the environment that look like ours and are none."""
    found = {}
    ours = [name.removeprefix(PREFIX) for name in VARIABLES if name.startswith(PREFIX)]
    for name, text in sorted(os.environ.items()):
        if text and name.upper().startswith(PREFIX) and name not in VARIABLES:
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), ours, 1, cutoff=0.7)
            meant = f"; {PREFIX}{near[0]} was perhaps meant" if near else ""
            found[name] = f"is not a variable of fd_postproc: it has no effect{meant}"
    return found


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


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return parse


def _peer(text: str) -> bool:
    words = text.split(",")
    if text and COMPACT not in words:
        raise ValueError(
            f"does not name {COMPACT}, without which nothing else is used.  Its words, separated by commas "
            f"without spaces, say what the reader takes: {COMPACT}, compact frames in the queue; {STREAMS}, "
            f"those through FastDeploy's ZeroMQ socket; {DRAFTS}, also of speculative decoding; "
            f"{SERVICE}NUMBER, whose they are"
        )
    for word in words:
        if word.startswith(SERVICE) and not re.fullmatch(_SERVICE_WORD, word):
            raise ValueError(f"holds {word}: a service's NUMBER is eight digits, 0 to 9 and a to f")
    return bool(text)


@cache
def service_number(peer: str) -> int:
    """The service's number in a value of ``FD_POSTPROC_PEER``; 0: it has none."""
    for word in peer.split(","):
        if re.fullmatch(_SERVICE_WORD, word):
            return int(word.removeprefix(SERVICE), 16)
    return 0


def _period(text: str) -> float:
    seconds = float(text) if text.strip() else math.inf
    if not seconds > 0:
        raise ValueError
    return seconds


def _seconds_or_off(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if text.strip().lower() in ("0", "off"):
            return math.inf
        seconds = float(text)
        if not seconds >= least:
            raise ValueError
        return seconds

    return parse


def _interval(text: str) -> tuple[int, float]:
    """Tokens and seconds; 0 tokens: off."""
    tokens, comma, ms = text.partition(",")
    most, seconds = _number(r"\s*[0-9]{1,4}\s*", 0, 1024)(tokens), 0.05
    if comma:
        seconds = _number(r"\s*[0-9]{1,4}\s*", 1, 1000)(ms) / 1000
    if most == 1:
        raise ValueError
    return most, seconds


def record_of(file: str) -> dict[str, dict[str, str]]:
    """The record in a file of `python -m tools.accept`, as `gate.unpacked` takes it."""
    if not file:
        return {}
    try:
        with open(file) as opened:
            accepted: dict[str, dict[str, str]] = json.load(opened)
        texts = [text for functions in accepted.values() for text in functions.values()]
        if texts and all(re.fullmatch("[0-9a-f+ -]*", text) for text in texts):
            return accepted
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError):  # no JSON, or of another shape
        pass
    raise ValueError("holds nothing that `python -m tools.accept` has accepted")


DIALECTS = ("auto", "packed", "legacy", "compact")
COMPACT = "compact/1"
"""Word in ``FD_POSTPROC_PEER`` by which a receiver's process says that it understands compact frames."""
STREAMS = "streams/3"
"""The word by which FastDeploy's engine says that it understands frames through the ZeroMQ socket."""
SERVICE = "service/"
"""Beginning of the word that names the service: its number follows, in eight hexadecimal digits."""
_SERVICE_WORD = SERVICE + "[0-9a-f]{8}"
DRAFTS = "streams/3+drafts"
"""The word by which it says that those of speculative decoding are to come there, too."""

# ---- at run time -------------------------------------------------------------------------------------------

QUEUE_ID = Variable("INFERENCE_MSG_QUEUE_ID", "1", "is not a decimal 32-bit number", _queue_id)
MESSAGE_ID = Variable(
    "INFERENCE_MSG_ID", "1", "is not a decimal number, 0 to 2147483647, other than 2", _message_id
)
PEER = Variable("FD_POSTPROC_PEER", parse=_peer)
DIALECT = Variable("FD_POSTPROC_DIALECT", "auto", f"is not one of {', '.join(DIALECTS)}", _one_of(*DIALECTS))
CHECKSUM = Switch("FD_POSTPROC_CHECKSUM", "1", safe=True)
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
CUDA = Variable("FD_POSTPROC_CUDA", "auto", "is not one of auto, 1, 0", _one_of("auto", "1", "0"))
DISABLE = Switch("FD_POSTPROC_DISABLE", safe=True)
WORKER = Switch("FD_POSTPROC_WORKER", "1")
API = Switch("FD_POSTPROC_API", "1")
ENGINE_WATCHDOG = Switch("FD_POSTPROC_ENGINE_WATCHDOG", "1")
MENDS = Switch("FD_POSTPROC_MENDS", "1")
LOG_STATS = Variable("FD_POSTPROC_LOG_STATS", "", "is not a number of seconds above 0", _period)
SILENCE = Variable(
    "FD_POSTPROC_SILENCE", "4", "is not a number of seconds from 0.1, or off", _seconds_or_off(0.1)
)
UNREACHABLE = Variable(
    "FD_POSTPROC_UNREACHABLE", "off", "is not a number of seconds from 2, or off", _seconds_or_off(2)
)
V1_SCHEDULER = Variable("ENABLE_V1_KVCACHE_SCHEDULER", "1", "is not a number such as 0 or 1", int)
KEEP_STALE = Switch("FD_POSTPROC_KEEP_STALE")
KEEP_POLLING = Switch("FD_POSTPROC_KEEP_POLLING", safe=True)
STREAM_INTERVAL = Variable(
    "FD_POSTPROC_STREAM_INTERVAL",
    "0",
    "is not a number of tokens, 2 to 1024, or 0 for off; after a comma milliseconds, 1 to 1000",
    _interval,
)
GC = Switch("FD_POSTPROC_GC", "1")
FASTDEPLOY = Variable("FD_POSTPROC_FASTDEPLOY")
KNOWN = Variable("FD_POSTPROC_KNOWN", parse=record_of)
FLIGHT = Variable(
    "FD_POSTPROC_FLIGHT",
    "8",
    "is not a number of MiB, 1 to 1024, or 0 for off",
    _number("[0-9]{1,4}", 0, 1024),
)
FLIGHT_FOLDER = Variable("FD_POSTPROC_FLIGHT_FOLDER")
FLIGHT_TOKENS = Switch("FD_POSTPROC_FLIGHT_TOKENS")

# ---- at build time, in the tests ---------------------------------------------------------------------------

TRACE = Switch("FD_POSTPROC_TRACE")
for _name in ("DOUBLE", "GOLDEN_STEPS", "CUDA_HEADERS", "TEST_DRIVER"):
    Variable(PREFIX + _name)
