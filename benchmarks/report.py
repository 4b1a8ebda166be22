"""Tables of what was measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from .runner import Compared, Found, Result

OURS = "fd_postproc"
NOISY = "noisy"
WIDEST = 0.3
"""The spread above which a ratio is not shown: NOISY stands in its place."""


def seconds(value: float) -> str:
    """A time with three significant digits and a unit."""
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
    reference, baseline = module.REFERENCE, module.BASELINE
    shown = [
        Column("median", lambda one, _: seconds(one.median)),
        Column("spread", lambda one, _: f"{100 * one.spread:.0f} %"),
        Column("best", lambda one, _: seconds(one.best)),
        Column("speed-up", lambda one, among: _ratio(among.results.get(baseline), one, "x")),
    ]
    if reference:
        shown.append(Column(f"/ {reference}", lambda one, among: _ratio(one, among.results.get(reference))))
    if before is not None:
        shown.append(
            Column("/ before", lambda one, among: _since(one, before.get(_key(question, among, one))))
        )
    return [*shown, Column("bytes", lambda one, _: f"{one.message_bytes:,}" if one.message_bytes else "")]


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


def rows(compared: list[Compared], shown: list[Column]) -> list[list[str]]:
    """Cells: case, contender, then one for each column.  The case is given once."""
    return [
        [one.case if k == 0 else "", name, *(column.cell(result, one) for column in shown)]
        for one in compared
        for k, (name, result) in enumerate(one.results.items())
    ]


def _not_run(compared: list[Compared]) -> list[str]:
    """A line for each reason why some contenders of a case did not run."""
    return [
        f"* {one.case}: {', '.join(name for name, why in one.missing.items() if why == reason)}: not run: "
        f"{reason}"
        for one in compared
        for reason in dict.fromkeys(one.missing.values())
    ]


def table(
    question: str,
    compared: list[Compared],
    before: dict[tuple[str, str, str], Result] | None = None,
    aligned: bool = False,
) -> str:
    """One question's results as Markdown, for a page, or `aligned` for a screen; no column is empty."""
    shown = columns(question, before)
    cells = rows(compared, shown)
    used = [i for i in range(len(shown)) if any(line[2 + i] for line in cells)]
    lines = [["case", "contender", *(shown[i].heading for i in used)]]
    for line in cells:
        name = f"**{line[1]}**" if line[1] == OURS else line[1]
        lines.append([line[0], name, *(line[2 + i] for i in used)])
    if not aligned:
        texts = [" | ".join(line) for line in lines]
        rule = "|---|---|" + "---:|" * len(used)
    else:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            " | ".join(
                cell.ljust(width) if k < 2 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    head, *others = (f"| {text} |" for text in texts)
    left_out = _not_run(compared)
    return "\n".join([head, rule, *others, *([""] if left_out else []), *left_out])


def load_average(found: Found) -> str:
    """Of the machine while it was measured, in a sentence; empty if it is not known."""
    facts = [result.facts for _, one in found for result in one.results.values()]
    loads = [float(one["load_avg_1min"]) for one in facts if "load_avg_1min" in one]
    return f"Load average while measuring: {min(loads):.1f} to {max(loads):.1f}." if loads else ""


def report(found: Found, before: Found | None = None) -> str:
    """Tables of all questions, in the order in which they were asked.

    Parameters
    ----------
    found : list of (str, Compared)
    before : list of (str, Compared), optional
        An earlier run, to stand beside this one.
    """
    then = None if before is None else earlier(before)
    shown: list[str] = []
    for question, compared in by_question(found).items():
        about = importlib.import_module(f"{__package__}.{question}").ABOUT
        shown += [f"{question}: {about}", "", table(question, compared, then, aligned=True), ""]
    if any(noisy(result) for _, one in found for result in one.results.values()):
        shown.append(f"{NOISY}: no ratio of timings with a spread above {100 * WIDEST:.0f} %.")
    return "\n".join([*shown, load_average(found)])
