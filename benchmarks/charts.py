"""Pictures of what was measured, as PNG and SVG."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import engine, linear, processors, step, unused
from .cases import HEADLINE, Case
from .report import OURS, by_question, seconds
from .runner import Compared, Found, Result

MISSING = "pictures need matplotlib: pip install 'fd-postproc[bench]' (or: pip install matplotlib)"
RED, BLUE, GREEN, GREY = "#c44e52", "#1f5fa8", "#5a9e6f", "#8c8c8c"
PURPLE, ORANGE = "#8064a2", "#d08a2e"
AXES = {"batch": "requests", "accepted": "accepted tokens a request", "columns": "logprob columns"}
TITLES = {
    "decode": "Bytes of a message to a Step",
    "lists": "Step to nested lists",
    "receive": "Message in the queue to a Step",
    "gets": "Message in the queue to FastDeploy's tensors",
    "save": "Save op: tensors to a message in the queue",
    "step": "Token processor: a step's results",
    "engine": "The whole engine process: results, texts, the client's bytes",
}
BELOW_THE_FLOOR = {
    "step": "the floor makes every object at once, fd_postproc makes metrics and lists when they are read "
    "(dotted: all lists are read)",
    "engine": "the floor makes dictionaries and has msgpack pack them, fd_postproc writes the bytes of its "
    "results",
}
"""Why lines are there, where that is no noise."""


def require_matplotlib() -> None:
    """Raise `ModuleNotFoundError` with the remedy if matplotlib is not installed."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ModuleNotFoundError(MISSING, name="matplotlib") from None


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw whatever the timings suffice for.

    Parameters
    ----------
    found : list of (str, Compared)
    folder : Path
        Made if it is not there; pictures in it are overwritten.

    Returns
    -------
    list of Path
        The PNG files; beside each is an SVG of the same name.
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
        "svg.hashsalt": "fd_postproc",
        "figure.constrained_layout.use": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    sorted_out = by_question(found)
    made = []
    with matplotlib.rc_context(style):
        for name, figure in _figures(sorted_out):
            for ending in ("png", "svg"):
                figure.savefig(
                    folder / f"{name}.{ending}", dpi=130, metadata={"Date": None} if ending == "svg" else None
                )
            made.append(folder / f"{name}.png")
            importlib.import_module("matplotlib.pyplot").close(figure)
    return made


def _figures(found: dict[str, list[Compared]]) -> Iterator[tuple[str, Any]]:
    for question in TITLES:
        figure = _over_axes(question, found.get(question, []))
        if figure is not None:
            yield question, figure
    makers: dict[str, Callable[[dict[str, list[Compared]]], Any]] = {
        "linear": _linear,
        "waterfall": _waterfall,
        "gc": _tails,
    }
    for name, make in makers.items():
        figure = make(found)
        if figure is not None:
            yield name, figure


def _new(panels: int, height: float = 3.6, width: float = 3.6, **named: Any) -> tuple[Any, list[Any]]:
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(
        1, panels, figsize=(max(width * panels, 5.6), height), squeeze=False, **named
    )
    return figure, list(axes[0])


def _micro(value: float) -> str:
    return seconds(value).replace("us", "µs")


def _nice_times(axis: Any) -> None:
    """Label a logarithmic axis of times, in three places at least."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def text(value: float, _: int) -> str:
        number, unit = _micro(value).split()
        return f"{float(number):g} {unit}"

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    steps = (
        (1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 5, 6, 8) if decades < 0.7 else (1, 2, 5) if decades < 2.7 else (1,)
    )
    axis.set_major_locator(LogLocator(subs=steps, numticks=99))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


# ---- Cost over batch, columns, accepted tokens ------------------------------------------------------------


def _contenders(question: str, compared: list[Compared]) -> dict[str, tuple[str, str]]:
    """Names to draw: colour and line of each."""
    baseline = getattr(importlib.import_module(f"{__package__}.{question}"), "BASELINE", "")
    drawn = {
        baseline: (RED, "o-"),
        OURS: (BLUE, "o-"),
        step.LISTS_READ: (BLUE, "o:"),
        "floor": (GREEN, "o--"),
    }
    return {name: look for name, look in drawn.items() if any(name in one.results for one in compared)}


def _cases(compared: list[Compared]) -> dict[Case, Compared]:
    """Comparisons by their case, where the label is a case and at most one remark on the message."""
    found = {}
    for one in compared:
        label, _, remark = one.case.partition(", ")
        if remark in ("", "compact") and (case := Case.parse(label)):
            found[case] = one
    return found


def _over_axes(question: str, compared: list[Compared]) -> Any:
    """The fastest timings, which noise can only lengthen: medians of lines close by would cross."""
    cases, centre = _cases(compared), HEADLINE[-1]
    series = {}
    for axis in AXES:
        same = {getattr(case, axis): one for case, one in cases.items() if _differ_in(case, centre, axis)}
        if len(same) >= 3:
            series[axis] = dict(sorted(same.items()))
    if not series:
        return None
    figure, panels = _new(len(series), sharey=True)
    for panel, (axis, points) in zip(panels, series.items(), strict=True):
        for name, (colour, line) in _contenders(question, compared).items():
            pairs = [(x, one.results[name]) for x, one in points.items() if name in one.results]
            panel.plot(
                [x for x, _ in pairs],
                [result.best for _, result in pairs],
                line,
                color=colour,
                label=name,
                markersize=4,
            )
        panel.set(xscale="log", yscale="log", xlabel=AXES[axis], title=_held(axis, centre))
        panel.set_xticks(list(points), list(map(str, points)))
        panel.minorticks_off()
    _nice_times(panels[0].yaxis)
    panels[0].set_ylabel("fastest timing")
    below = _below_the_floor(question, [one for points in series.values() for one in points.values()])
    figure.suptitle(TITLES[question], x=0.01, ha="left", fontweight="bold")
    handles, labels = panels[0].get_legend_handles_labels()
    named = {"title": below, "title_fontproperties": {"size": 9}}
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **named)
    return figure


def _below_the_floor(question: str, drawn: list[Compared]) -> str:
    """A sentence about points below the floor's; "" if there are none."""
    pairs = [one.results for one in drawn if OURS in one.results and "floor" in one.results]
    least = min((results[OURS].best / results["floor"].best for results in pairs), default=1.0)
    if round(least, 2) >= 1:
        return ""
    why = f"both make the same, and timings of two processes differ by that ({1 - least:.0%} at most)"
    return f"Below the floor: {BELOW_THE_FLOOR.get(question, why)}."


def _differ_in(case: Case, centre: Case, axis: str) -> bool:
    return replace(case, **{axis: getattr(centre, axis)}) == centre


def _held(axis: str, centre: Case) -> str:
    words = {
        "batch": f"{centre.batch} requests",
        "accepted": f"{centre.accepted} tokens",
        "columns": f"{centre.columns} columns",
    }
    return ", ".join(text for name, text in words.items() if name != axis)


# ---- Linear in what is used, flat in what is not ----------------------------------------------------------


def _linear(found: dict[str, list[Compared]]) -> Any:
    lines, ratios = linear.lines(found.get("linear", [])), unused.ratios(found.get("unused", []))
    if not lines or not ratios:
        return None
    figure, panels = _new(2, height=4.2, width=5.2)
    for (call, one), colour in zip(lines.items(), (BLUE, GREEN, PURPLE, ORANGE, GREY, RED), strict=False):
        text = f"{call}: {_micro(one.slope)} a row, R² {one.r2:.4f}, within {one.worst:.1%}"
        ends = np.array([one.rows[0], one.rows[-1]])
        first = one.costs[0]
        panels[0].plot(one.rows, np.array(one.costs) / first, "o", color=colour, markersize=4)
        panels[0].plot(
            ends, (one.start + one.slope * ends) / first, "-", color=colour, linewidth=1, label=text
        )
    panels[0].set(
        xlabel="accepted rows of 21 columns, 256 requests",
        ylabel="time / that of the fewest rows",
        title="Linear in what is used: least-squares lines",
    )
    panels[0].set_xlim(0, None)
    panels[0].set_ylim(0, None)
    figure.legend(loc="outside lower center", fontsize=8, ncols=2)
    _bars_of_unused(panels[1], {name: ratio for name, ratio in ratios.items() if "floor" not in name})
    return figure


def _bars_of_unused(panel: Any, ratios: dict[str, float]) -> None:
    places = range(len(ratios))
    panel.barh(places, list(ratios.values()), color=BLUE, height=0.5)
    for place, ratio in zip(places, ratios.values(), strict=True):
        panel.text(ratio + 0.02, place, f"{ratio:.2f}", va="center", fontsize=8)
    panel.axvline(1, color=GREY, linewidth=1)
    panel.set_yticks(list(places), [_used(label) for label in ratios], fontsize=8)
    panel.set_xlim(0, max([2.0, *(ratio * 1.15 for ratio in ratios.values())]))
    panel.invert_yaxis()
    panel.grid(False)
    panel.set(
        xlabel="time / that without unused room (1: it costs nothing)",
        title="Flat in what is not used: decode",
    )


def _used(label: str) -> str:
    """As a phrase, "slots: 1 of 512, cut after it" for one."""
    kind, _, rest = label.partition(": ")
    share, _, how = rest.partition(", ")
    return f"{share} {kind} used" + (f",\n{how}" if how else "")


# ---- Where a step's time goes -----------------------------------------------------------------------------


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
        for part in engine.STEP_PARTS:
            rest = of(f"{engine.RESULTS}, less {part}")
            found[part] = max(left - rest, 0.0)
            left = min(left, rest)
        found[engine.RESULTS] = left
    else:
        found[engine.RESULTS] = of(engine.RESULTS)
    found[engine.TEXTS] = 0.0 if name == "floor" else of(engine.TEXTS)
    if f"{name}: {engine.DICTS}" in results:
        found[engine.DICTS] = of(engine.DICTS)
    return found | {engine.PACK: of(engine.PACK)}


def _scaled(parts_: dict[str, float], total: float) -> dict[str, float]:
    """Parts in the same proportions, of another total."""
    by = total / sum(parts_.values())
    return {part: by * seconds for part, seconds in parts_.items()}


def _waterfall(found: dict[str, list[Compared]]) -> Any:
    """The whole is the median that the tables have, where it was measured; its parts are in proportion."""
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
    figure, grid = pyplot.subplots(
        len(measured), 2, figsize=(11, 3.3 * len(measured)), squeeze=False, sharey=True
    )
    for line, one in zip(grid, measured, strict=True):
        medians = whole.get(one.case.removesuffix(", parts"), {})
        totals = [
            medians[name].median if name in medians else sum(parts(one, name).values()) for name in names
        ]
        for panel, name, colour, total in zip(line, names, (RED, BLUE), totals, strict=True):
            _cascade(panel, _scaled(parts(one, name), total), list(parts(one, names[0])), colour)
            speed = f", {totals[0] / total:.0f} times as fast" if name == OURS else ""
            panel.set_title(f"{name}: {_micro(total)}{speed}", fontweight="bold")
        label = one.case.removesuffix(", parts")
        line[0].set_ylabel(_words(label), fontsize=10)
    for panel in grid[-1]:
        panel.set_xlabel("ms of one step; the two columns have different scales")
    figure.suptitle(
        "Where the engine process spends a step, from the message to the client's bytes",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    return figure


def _words(label: str) -> str:
    case = Case.parse(label)
    if case is None:
        return label
    columns = f"{case.columns} column{'s' if case.columns > 1 else ''}"
    return f"{case.batch} requests, {case.accepted} tokens,\n{columns}"


def _cascade(panel: Any, durations: dict[str, float], lines: list[str], colour: str) -> None:
    """Bars one after the other; a part without a call of its own belongs to the results."""
    total, at = sum(durations.values()), 0.0
    for place, part in enumerate(lines):
        if part not in durations:
            what = "not made" if part in (engine.UNREAD, engine.DICTS) else f"in {engine.RESULTS}"
            panel.text(1e3 * 0.01 * total, place, what, va="center", fontsize=8, color=GREY)
            continue
        took = durations[part]
        panel.barh(place, 1e3 * took, left=1e3 * at, color=colour, height=0.7)
        beyond = at + took > 0.8 * total
        panel.text(
            1e3 * (at - 0.01 * total if beyond else at + took + 0.01 * total),
            place,
            _micro(took) if took > 0 else "too short to tell",
            va="center",
            ha="right" if beyond else "left",
            fontsize=8,
        )
        at += took
    panel.set_yticks(range(len(lines)), lines)
    panel.set_xlim(0, 1e3 * total * 1.02)
    if not panel.yaxis_inverted():
        panel.invert_yaxis()
    panel.grid(axis="y", visible=False)


# ---- The slowest steps ------------------------------------------------------------------------------------


def _tails(found: dict[str, list[Compared]]) -> Any:
    measured = [one for one in found.get("gc", []) if one.results]
    if not measured:
        return None
    figure, panels = _new(len(measured), height=3.8, width=8.0 / len(measured), sharey=True)
    for panel, one in zip(panels, measured, strict=True):
        for name, result in one.results.items():
            base = name.removesuffix(", frozen")
            colour = BLUE if base == OURS else RED if base == processors.RESTATED else GREY
            _survival(panel, result, colour, "--" if name != base else "-", name)
        panel.set(
            xscale="log", yscale="log", xlabel="time of a step", title=_words(one.case).replace("\n", " ")
        )
        _nice_times(panel.xaxis)
        panel.set_ylim(0.4 / max(len(result.values) for result in one.results.values()), 1.3)
    panels[0].set_ylabel("share of steps that took longer")
    panels[0].yaxis.set_major_formatter(_one_in)
    figure.suptitle(
        "Slow steps: the garbage collector, with and without gc.freeze", x=0.01, ha="left", fontweight="bold"
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _one_in(share: float, _: int) -> str:
    return "all" if share >= 1 else f"1 in {1 / share:,.0f}"


def _survival(panel: Any, result: Result, colour: str, line: str, label: str) -> None:
    times = np.sort(result.values)
    panel.step(times, 1 - np.arange(len(times)) / len(times), line, color=colour, label=label, linewidth=1.4)
