"""Shared code of the commands for arguments, signals and the screen."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import TYPE_CHECKING

from ..core.layout import GPU, XPU, Layout
from ..support.checks import shown

if TYPE_CHECKING:
    from rich.console import Console

_LARGEST = (1 << 31) - 1
_LONGEST = 10**9
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandError(Exception):
    """Raised when a command cannot do its job; the text is one line for the user."""


def console() -> Console:
    """The console of a command: stdout, with control codes only on a terminal."""
    from rich.console import Console

    found = Console(highlight=False, emoji=False, markup=False)
    if found.is_terminal and found.width > 0:
        return found
    # COLUMNS if it is a number above 0; a file has no 80 columns.
    width = shutil.get_terminal_size((100, 24)).columns
    return Console(highlight=False, emoji=False, markup=False, width=width)


def note(text: str) -> None:
    """Print a note for the user on stderr, apart from the output proper."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what takes so long, until the end of the block; on stderr, and only if that is a terminal."""
    if not text or not sys.stderr.isatty():
        yield
        return
    print(f"fd-postproc: {text} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def positive_int(text: str) -> int:
    return _whole(text, 1)


def index_number(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST))
    if not digits or not least <= int(text) <= _LARGEST:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from {least} to {_LARGEST}")
    return int(text)


def positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below {_LONGEST:,}")
    return value


def parse_layout(text: str) -> Layout:
    """Parse ``gpu``, ``xpu``, or max_batch,top_k,max_draft,spec_batch."""
    named = {"gpu": GPU, "xpu": XPU}
    if text.lower() in named:
        return named[text.lower()]
    numbers = text.split(",")
    if len(numbers) != 4 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither gpu, xpu, nor four numbers MAX_BATCH,TOP_K,MAX_DRAFT,SPEC_BATCH (gpu: "
            "512,20,6,256)"
        )
    try:
        return Layout(*map(int, numbers))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def layout_name(layout: Layout) -> str:
    return "gpu" if layout == GPU else ",".join(map(str, astuple(layout)))


def add_layout_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layout",
        type=parse_layout,
        metavar="gpu|xpu|B,K,D,S",
        help="sender's geometry, by name or four numbers (default: the recording's, else gpu, 512,20,6,256)",
    )


@contextlib.contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """Collect the numbers of signals that ask the program to end, instead of raising."""
    seen: list[int] = []

    def remember(number: int, _frame: object) -> None:
        seen.append(number)

    before = {number: signal.signal(number, remember) for number in _ENDING}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
