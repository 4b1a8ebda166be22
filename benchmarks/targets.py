"""The speeds that the project has set itself, and what was measured of them."""

from __future__ import annotations

from typing import NamedTuple

from .processors import OURS, RESTATED
from .report import earlier, seconds
from .runner import Found, Result
from .step import LISTS_READ

NARROW, WIDE = "spec_topk b256 a2 c1", "spec_topk b256 a2 c21"
FASTDEPLOYS_GET, FASTDEPLOYS_SAVE = "FastDeploy's get op restated", "FastDeploy's op restated"


HEADINGS = (
    *("256 requests, 2 tokens each", "FastDeploy's way", "fd_postproc", "best"),
    *("times as fast", "/ C baseline", "target", "reached"),
)


class Target(NamedTuple):
    """One row.

    Attributes
    ----------
    what : str
    question, case : str
        Where it is measured.
    stock : str
        The contender that does it FastDeploy's way.
    time : float
        Seconds to stay under; 0 if the target is a ratio.
    floor : float
        Times of the floor to stay under; 0 if there is no such target.
    speed_up : float
        Times as fast as FastDeploy's way to be; 0 if there is no such target.
    size : int
        Bytes to stay under; 0 if there is no such target.
    ours : str
        The contender that is to reach it.
    """

    what: str
    question: str
    case: str
    stock: str
    time: float = 0
    floor: float = 0
    speed_up: float = 0
    size: int = 0
    ours: str = OURS


TARGETS = (
    Target("receive, 1 column", "receive", f"{NARROW}, compact", FASTDEPLOYS_GET, 10e-6, size=8192),
    Target("receive, 21 columns", "receive", f"{WIDE}, compact", FASTDEPLOYS_GET, 40e-6, size=90_000),
    Target("results, 1 column", "step", NARROW, RESTATED, 0.35e-3, speed_up=40),
    Target("results, 21 columns", "step", WIDE, RESTATED, 0.7e-3, speed_up=40),
    Target("results, all lists read, 1 column", "step", NARROW, RESTATED, floor=1.3, ours=LISTS_READ),
    Target("results, all lists read, 21 columns", "step", WIDE, RESTATED, floor=1.3, ours=LISTS_READ),
    Target("whole engine process, 1 column", "engine", NARROW, RESTATED, 1.5e-3),
    Target("whole engine process, 21 columns", "engine", WIDE, RESTATED, 2.5e-3),
    Target("save op, CPU tensors, 1 column", "save", NARROW, FASTDEPLOYS_SAVE, 12e-6),
)


def markdown(found: Found) -> str:
    """A table of all targets for which there is a measurement."""
    results = earlier(found)
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for target in TARGETS:
        ours, stock, floor = (
            results.get((target.question, target.case, name)) for name in (target.ours, target.stock, "floor")
        )
        if ours and stock and floor:
            cells = (
                target.what,
                seconds(stock.median),
                seconds(ours.median),
                seconds(ours.best),
                f"{stock.ratio(ours):.1f}",
                f"{ours.ratio(floor):.2f}",
                wanted(target),
                "yes" if reached(target, ours, stock, floor) else "no",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Row(NamedTuple):
    """One row of README's table, for operators of FastDeploy."""

    what: str
    question: str
    case: str
    stock: str


FOR_OPERATORS = (
    Row("engine process, with the 20 likeliest tokens", "engine", WIDE, RESTATED),
    Row("engine process, with the sampled token's alone", "engine", NARROW, RESTATED),
    Row("of that: take the message out of the queue", "receive", f"{WIDE}, compact", FASTDEPLOYS_GET),
    Row("worker: save the step from CPU tensors", "save", NARROW, FASTDEPLOYS_SAVE),
)


def for_operators(found: Found) -> str:
    """README's table: medians, and how many times as fast."""
    results = earlier(found)
    lines = ["| one step | FastDeploy | fd_postproc | times as fast |", "|---|---:|---:|---:|"]
    for what, question, case, by in FOR_OPERATORS:
        ours, stock = (results.get((question, case, name)) for name in (OURS, by))
        if ours and stock:
            times = stock.median / ours.median
            fast = f"{times:.1f}" if times < 10 else f"{times:.0f}"
            lines.append(f"| {what} | {seconds(stock.median)} | {seconds(ours.median)} | {fast} |")
    return "\n".join(lines)


def wanted(target: Target) -> str:
    """The target in words."""
    words = []
    if target.time:
        words.append(seconds(target.time))
    if target.floor:
        words.append(f"{target.floor:g} C baselines")
    if target.speed_up:
        words.append(f"{target.speed_up:g} times as fast")
    if target.size:
        words.append(f"{target.size:,} bytes")
    return ", ".join(words)


def reached(target: Target, ours: Result, stock: Result, floor: Result) -> bool:
    """Whether medians meet all parts of a target."""
    return (
        (not target.time or ours.median <= target.time)
        and (not target.floor or ours.ratio(floor) <= target.floor)
        and (not target.speed_up or stock.ratio(ours) >= target.speed_up)
        and (not target.size or ours.message_bytes <= target.size)
    )
