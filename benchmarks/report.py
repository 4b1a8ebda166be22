"""Tables of what was measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .runner import Compared, Found, Result

OURS = "fd_postproc"
NOISY = "noisy"
WIDEST = 0.3
"""The spread above which a ratio is not shown: NOISY stands in its place."""
LEAST = ("objects", "bytes", "best")
"""Columns that a narrow terminal has no room for, first the one that is missed least."""


def seconds(value: float) -> str:
    """A time with three significant digits and a unit."""
    if value < 0:
        return f"-{seconds(-value)}"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{_three(value / scale)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def noisy(*results: Result) -> bool:
    """Whether one of them has a spread too wide for a ratio."""
    return any(one.spread > WIDEST for one in results)


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


class Column(NamedTuple):
    """A heading, and the text of a cell: "" if there is none."""

    heading: str
    cell: Callable[[Result, Compared], str]


def columns(question: str, before: dict[tuple[str, str, str], Result] | None = None) -> list[Column]:
    """The columns of a question's table.

    Ratios are medians over rounds, each round's contenders having run one after the other.

    Parameters
    ----------
    question : str
    before : dict of (question, case, contender) to Result, optional
        An earlier run to compare with.
    """
    module = importlib.import_module(f"{__package__}.{question}")
    reference, baseline = module.REFERENCE, getattr(module, "BASELINE", "")
    shown = [
        Column("median", lambda one, _: seconds(one.median)),
        Column("spread", lambda one, _: f"{100 * one.spread:.0f} %"),
        Column("best", lambda one, _: seconds(one.best)),
    ]
    if baseline:
        shown.append(Column("speed-up", lambda one, among: _ratio(among.results.get(baseline), one, "x")))
    if reference:
        shown.append(Column(f"/ {reference}", lambda one, among: _ratio(one, among.results.get(reference))))
    if before is not None:
        shown.append(
            Column("/ before", lambda one, among: _since(one, before.get(_key(question, among, one))))
        )
    return [
        *shown,
        Column("bytes", lambda one, _: f"{one.message_bytes:,}" if one.message_bytes else ""),
        Column("objects", lambda one, _: f"{one.objects:,}" if one.objects else ""),
    ]


def _key(question: str, compared: Compared, result: Result) -> tuple[str, str, str]:
    return question, compared.case, next(name for name, one in compared.results.items() if one is result)


def _ratio(one: Result | None, other: Result | None, unit: str = "") -> str:
    if not (one and other):
        return ""
    return NOISY if noisy(one, other) else f"{_three(one.ratio(other))}{unit}"


def _since(now: Result, then: Result | None) -> str:
    if not then:
        return ""
    return NOISY if noisy(now, then) else f"{now.median / then.median:.2f}"


def by_question(found: Found) -> dict[str, list[Compared]]:
    """What was found, in the order in which it was asked."""
    sorted_out: dict[str, list[Compared]] = {}
    for question, compared in found:
        sorted_out.setdefault(question, []).append(compared)
    return sorted_out


def earlier(found: Found) -> dict[tuple[str, str, str], Result]:
    """An earlier run, to look results up in."""
    return {
        (question, compared.case, name): result
        for question, compared in found
        for name, result in compared.results.items()
    }


def rows(question: str, compared: list[Compared], shown: list[Column]) -> list[list[str]]:
    """Cells: case, contender, then one for each column.  The case is given once."""
    lines = []
    for one in compared:
        label = one.case
        for name, result in one.results.items():
            lines.append([label, name, *(column.cell(result, one) for column in shown)])
            label = ""
        reasons = dict.fromkeys(one.missing.values())
        for reason in reasons:
            names = [name for name, why in one.missing.items() if why == reason]
            everything = not one.results and len(reasons) == 1
            who = "" if everything else ", ".join(names) + ": "
            lines.append([label, f"{who}not run: {reason}", *("" for _ in shown)])
            label = ""
    return lines


def table(
    question: str,
    compared: list[Compared],
    width: int,
    before: dict[tuple[str, str, str], Result] | None = None,
) -> Table:
    """One question's results for a terminal of so many columns.

    Columns without content are left out, and then those of LEAST, until labels need no second line.
    """
    module = importlib.import_module(f"{__package__}.{question}")
    shown = columns(question, before)
    cells = rows(question, compared, shown)
    used = [i for i in range(len(shown)) if any(line[2 + i] for line in cells)]
    labels = max(max(len(line[0]), len("  " + line[1]) * any(line[2:])) for line in cells)
    for least in LEAST:
        texts = ((shown[i].heading, *(line[2 + i] for line in cells)) for i in used)
        if labels + sum(3 + max(map(len, column)) for column in texts) > width:
            used = [i for i in used if shown[i].heading != least]
    out = Table(
        title=Text(f"{question}: {module.ABOUT}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    out.add_column("", overflow="fold")
    for i in used:
        out.add_column(shown[i].heading, justify="right", no_wrap=True)
    for line in cells:
        if line[0]:
            out.add_row(Text(line[0]), style="cyan")
        style = "bold" if line[1] == OURS else None
        out.add_row(Text("  " + line[1]), *(line[2 + i] for i in used), style=style)
    return out


def notes(question: str, compared: list[Compared]) -> list[str]:
    """What a question has to say about its results as a whole, a line each."""
    said = getattr(importlib.import_module(f"{__package__}.{question}"), "notes", None)
    return said(compared) if said else []


def load_average(found: Found) -> str:
    """Of the machine while it was measured, in a sentence; empty if it is not known."""
    facts = [result.facts for _, one in found for result in one.results.values()]
    loads = [float(one["load_avg_1min"]) for one in facts if "load_avg_1min" in one]
    return f"Load average while measuring: {min(loads):.1f} to {max(loads):.1f}." if loads else ""


def report(found: Found, width: int, before: Found | None = None) -> list[RenderableType]:
    """Tables of all questions, in the order in which they were asked, and notes under them.

    Parameters
    ----------
    found : list of (str, Compared)
    width : int
        Columns of the terminal.
    before : list of (str, Compared), optional
        An earlier run, to stand beside this one.
    """
    then = None if before is None else earlier(before)
    shown: list[RenderableType] = []
    for question, compared in by_question(found).items():
        shown.append(table(question, compared, width, then))
        shown += [Text(line) for line in notes(question, compared)]
        shown.append(Text())
    if any(noisy(result) for _, one in found for result in one.results.values()):
        shown.append(Text(f"{NOISY}: no ratio of timings with a spread above {100 * WIDEST:.0f} %."))
    shown.append(Text(load_average(found)))
    return shown


def markdown(question: str, compared: list[Compared]) -> str:
    """One question's results for a page."""
    shown = columns(question)
    cells = rows(question, compared, shown)
    used = [i for i in range(len(shown)) if any(line[2 + i] for line in cells)]
    headings = ["case", "contender", *(shown[i].heading for i in used)]
    lines = [
        "| " + " | ".join(headings) + " |",
        "|---|---|" + "---:|" * len(used),
    ]
    for line in cells:
        name = f"**{line[1]}**" if line[1] == OURS else line[1]
        lines.append("| " + " | ".join([line[0], name, *(line[2 + i] for i in used)]) + " |")
    said = [f"* {line}" for line in notes(question, compared)]
    return "\n".join([*lines, *([""] if said else []), *said])
