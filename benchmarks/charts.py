"""The picture of where a step's time goes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from . import engine, processors, shares
from .cases import NARROW, WIDE
from .report import OURS, by_question, seconds
from .runner import Compared, Found

MISSING = "pictures need matplotlib: pip install 'fd-postproc[bench]' (or: pip install matplotlib)"
BLUE = "#1f5fa8"
COLOURS = (
    *("#444444", "#e8c15a", "#7d7d7d", "#cfcfcf", "#d98248"),
    *("#b9a2d0", "#e3a5a5", "#8fbf8f", "#c7b299", "#a0a0a0"),
)
"""One for each part: neighbours differ in hue and in brightness, and none is ours."""
NARROW_S = 2e-3
"""Seconds of a part whose bar has no room for a number."""


def require_matplotlib() -> None:
    """Raise `ModuleNotFoundError` with the remedy if matplotlib is not installed."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ModuleNotFoundError(MISSING, name="matplotlib") from None


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw the picture, if the timings suffice for it.

    Parameters
    ----------
    found : list of (str, Compared)
    folder : Path
        Made if it is not there; a picture in it is overwritten.

    Returns
    -------
    list of Path
        The PNG file, if one was drawn.
    """
    require_matplotlib()
    import matplotlib

    matplotlib.use("agg")
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.grid": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
    with matplotlib.rc_context(style):
        figure = _waterfall(by_question(found))
        if figure is None:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "waterfall.png"
        figure.savefig(path, dpi=130)
        importlib.import_module("matplotlib.pyplot").close(figure)
    return [path]


def _micro(value: float) -> str:
    return seconds(value).replace("us", "µs")


def parts(compared: Compared, name: str) -> dict[str, float]:
    """Seconds of each part of what the engine process does with a step, in order; of the fastest timings.

    A part that is a difference of two calls would drown in the noise of their medians.
    """
    results = compared.results

    def of(part: str) -> float:
        one = results.get(f"{name}: {part}") or results.get(f"{processors.RESTATED}: {part}")
        return one.best if one else 0.0

    found = {engine.GET: of(engine.GET)}
    if name == processors.RESTATED:
        left = of(engine.RESULTS)
        for part in shares.PARTS:
            rest = of(f"{engine.RESULTS}, less {part}")
            found[part] = max(left - rest, 0.0)
            left = min(left, rest)
        found[engine.RESULTS] = left
    else:
        found[engine.RESULTS] = of(engine.RESULTS)
    found[engine.TEXTS] = of(engine.TEXTS)
    if f"{name}: {engine.DICTS}" in results:
        found[engine.DICTS] = of(engine.DICTS)
    return found | {engine.PACK: of(engine.PACK)}


def _scaled(parts_: dict[str, float], total: float) -> dict[str, float]:
    """Parts in the same proportions, of another total."""
    by = total / sum(parts_.values())
    return {part: by * seconds for part, seconds in parts_.items()}


def _waterfall(found: dict[str, list[Compared]]) -> Any:
    """Both on one scale.  The whole is the median that the tables have, of FastDeploy's own class if it ran.

    Its parts are in proportion to those of the class restated.
    """
    whole = {one.case: one.results for one in found.get("engine", [])}
    measured = [one for one in found.get("engine", []) if one.case.endswith(", parts")]
    names = [
        name
        for name in (processors.RESTATED, OURS)
        if measured and f"{name}: {engine.RESULTS}" in measured[0].results
    ]
    if len(names) < 2:
        return None
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panel = pyplot.subplots(figsize=(11, 0.9 + 1.1 * len(measured)))
    names_of_parts = list(parts(measured[0], names[0]))
    shades = dict(zip(names_of_parts, COLOURS, strict=False))
    longest, ticks, cases = 0.0, {}, {str(case): case for case in (NARROW, WIDE)}
    for group, one in enumerate(measured):
        medians = whole.get(one.case.removesuffix(", parts"), {})
        shown = {processors.RESTATED: processors.REAL} if processors.REAL in medians else {}
        totals = [
            medians[shown.get(name, name)].median if name in medians else sum(parts(one, name).values())
            for name in names
        ]
        longest = max(longest, *totals)
        for place, name, total in zip((3 * group, 3 * group + 1), names, totals, strict=True):
            colours = shades if name != OURS else dict.fromkeys(shades, BLUE)
            _stacked(panel, place, _scaled(parts(one, name), total), colours)
            speed = f": {totals[0] / total:.0f} times as fast" if name == OURS else ""
            panel.text(1e3 * total, place, f"  {_micro(total)}{speed}", va="center", fontweight="bold")
            case = cases[one.case.removesuffix(", parts")]
            columns = f"{case.columns} column{'s' if case.columns > 1 else ''}"
            words = f"{case.batch} requests, {case.accepted} tokens, {columns}"
            ticks[place] = f"{words}\n{shown.get(name, name)}" if name != OURS else name
    for part, colour in shades.items():
        if part != engine.GET:  # too narrow to be seen
            panel.barh(0, 0, color=colour, label=part)
    panel.set_yticks(list(ticks), list(ticks.values()))
    panel.invert_yaxis()
    panel.set_xlim(0, 1e3 * longest * 1.12)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("ms of one step, both on one scale")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle(
        "What the engine process spends on a step, from the message to the client's bytes",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    return figure


def _stacked(panel: Any, place: float, durations: dict[str, float], colours: dict[str, str]) -> None:
    """The parts of a step in one bar."""
    at = 0.0
    for part, took in durations.items():
        panel.barh(place, 1e3 * took, left=1e3 * at, color=colours[part], height=0.8)
        if took > NARROW_S:
            panel.text(
                1e3 * (at + took / 2), place, f"{1e3 * took:.0f}", ha="center", va="center", fontsize=9
            )
        at += took
