"""The picture of what a step costs the engine process."""

from __future__ import annotations

import importlib
from pathlib import Path

from .cases import NARROW, WIDE
from .processors import OURS, REAL, RESTATED
from .report import earlier, seconds
from .runner import Found

GREY, BLUE = "#9a9a9a", "#1f5fa8"


def draw(found: Found, path: Path) -> None:
    """Draw the medians of `engine`, FastDeploy's own class's if it ran, if there are both.

    Parameters
    ----------
    found : list of (str, Compared)
    path : Path
        The PNG file.
    """
    results, bars = earlier(found), []
    for case in NARROW, WIDE:
        ways = {name: results.get(("engine", str(case), name)) for name in (REAL, RESTATED, OURS)}
        stock, ours = ways[REAL] or ways[RESTATED], ways[OURS]
        if stock is None or ours is None:
            return
        columns = f"{case.columns} column{'s' if case.columns > 1 else ''}"
        label = f"{case.batch} requests, {case.accepted} tokens, {columns}"
        bars += [
            (f"{label}\n{REAL if ways[REAL] else RESTATED}", stock.median, ""),
            (OURS, ours.median, f": {stock.median / ours.median:.0f} times as fast"),
        ]
    importlib.import_module("matplotlib").use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panel = pyplot.subplots(figsize=(11, 3.1), layout="constrained")
    for place, (label, took, speed) in zip((0, 1, 3, 4), bars, strict=True):
        panel.barh(place, 1e3 * took, color=BLUE if label == OURS else GREY, height=0.8)
        text = f"  {seconds(took).replace('us', 'µs')}{speed}"
        panel.text(1e3 * took, place, text, va="center", fontweight="bold")
    panel.set_yticks((0, 1, 3, 4), [label for label, *_ in bars])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_axisbelow(True)
    panel.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("ms of one step")
    panel.set_title(
        "What the engine process spends on a step, from the message to the client's bytes",
        loc="left", fontweight="bold",
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
