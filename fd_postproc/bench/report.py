"""Tables of what was measured."""

from __future__ import annotations

import importlib

from rich.console import RenderableType
from rich.table import Table

from .runner import Compared, Result

OURS = "fd_postproc"


def seconds(value: float) -> str:
    """A time with three significant digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{_three(value / scale)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(question: str, compared: list[Compared]) -> Table:
    """One question's results.

    Ratios are medians over rounds, each round's contenders having run one after the other; those of the best
    divide the two fastest timings of all.  Columns without content are left out.
    """
    module = importlib.import_module(f"{__package__}.{question}")
    reference = module.REFERENCE
    headings = ("median", "spread", "best", f"x {reference}", "x best", f"x {OURS}", "bytes", "objects")
    cells = {
        (one.case, name): _cells(result, one.results.get(reference), one.results.get(OURS))
        for one in compared
        for name, result in one.results.items()
        if not one.skipped
    }
    used = [i for i in range(len(headings)) if any(row[i] for row in cells.values())]
    out = Table(title=f"{question}: {module.ABOUT}", title_justify="left", pad_edge=False)
    out.add_column("case")
    out.add_column("contender")
    for i in used:
        out.add_column(headings[i], justify="right", no_wrap=True)
    for one in compared:
        if one.skipped:
            out.add_row(one.case, f"not run: {one.skipped}", end_section=True)
            continue
        last = list(one.results)[-1]
        for name in one.results:
            out.add_row(
                one.case if name == next(iter(one.results)) else "",
                name,
                *(cells[one.case, name][i] for i in used),
                end_section=name == last,
                style="bold" if name == OURS else None,
            )
    return out


def _cells(result: Result, reference: Result | None, ours: Result | None) -> list[str]:
    return [
        seconds(result.median),
        f"{100 * result.spread:.0f} %",
        seconds(result.best),
        f"{result.ratio(reference):.2f}" if reference else "",
        f"{result.best / reference.best:.2f}" if reference else "",
        f"{result.ratio(ours):.2f}" if ours else "",
        f"{result.message_bytes:,}" if result.message_bytes else "",
        f"{result.objects:,}" if result.objects else "",
    ]


def report(found: list[tuple[str, Compared]]) -> list[RenderableType]:
    """Tables of all questions, in the order in which they were asked."""
    by_question: dict[str, list[Compared]] = {}
    for question, compared in found:
        by_question.setdefault(question, []).append(compared)
    return [table(question, compared) for question, compared in by_question.items()]
