"""The picture: CPU of a token from sampled tokens to results, each engine's, with and without logprobs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .results import OURS, steps

STREAMS = 256
COLOURS = {None: "#9a9a9a", 0: "#d08a8c", 20: "#8c2a2e"}
BLUES = {None: "#a3bfdd", 0: "#6f9bcb", 20: "#1f5fa8"}
NAMES = {
    None: "no log-probabilities",
    0: "the sampled token's log-probability",
    20: "that, and the 20 likeliest tokens'",
}
TITLES = {
    False: "Token ids and numbers only",
    True: 'With texts ("up to JSON", "msgpack": and made into the bytes for the next process)',
}


def draw(whole: dict[str, Any], folder: Path) -> Path | None:
    """Write peers.png; None if there is nothing to draw."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [(texts, points(whole, texts)) for texts in (False, True)]
    panels = [(texts, found) for texts, found in panels if found]
    if not panels:
        return None
    heights = [0.6 + len(found) for _, found in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(11, 1 + 0.55 * sum(heights)),
        height_ratios=heights,
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for (texts, found), panel in zip(panels, axes[:, 0], strict=True):
        for place, (name, costs) in enumerate(found):
            for top, (low, us, high) in costs.items():
                at = place + 0.27 * (list(NAMES).index(top) - 1)
                colour = (BLUES if name.startswith(OURS) else COLOURS)[top]
                panel.plot((low, high), (at, at), color=colour, linewidth=2.5)
                panel.plot(us, at, "o", color=colour, markersize=6)
                panel.text(max(us, high), at, f"   {us:.3g} µs", va="center", fontsize=8)
        panel.set_xscale("log")
        panel.grid(color="#e4e4e4", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.set_yticks(range(len(found)), [name for name, _ in found])
        panel.invert_yaxis()
        panel.margins(x=0.09)
        panel.set_title(TITLES[texts], loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].xaxis.set_major_formatter(lambda us, _: f"{us:g}")
    axes[-1, 0].set_xlabel(
        "µs of CPU a token, less is better; each mark is ten times the one before; "
        "a line spans the middle half of the passes"
    )
    for whose, colours in (("other engines", COLOURS), (OURS, BLUES)):
        for top, colour in colours.items():
            axes[0, 0].plot([], [], "o-", color=colour, label=f"{whose}: {NAMES[top]}")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(
        f"CPU of a token, from a step's numbers to results: {STREAMS} requests, 2 tokens each",
        x=0.01,
        ha="left",
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "peers.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def points(whole: dict[str, Any], texts: bool) -> list[tuple[str, dict[Any, tuple[float, float, float]]]]:
    """Of each contender, its costs by log-probabilities; the cheapest with 20 likeliest first.

    A cost is the figure of the tables between the quartiles of its passes.
    """
    found: dict[str, dict[Any, tuple[float, float, float]]] = {}
    for row in steps(whole):
        if row["load"]["texts"] == texts and row["load"]["streams"] == STREAMS and "us" in row:
            low, middle, high = statistics.quantiles(row["ratios"], n=4, method="inclusive")
            us = row["us"]
            cost = us * low / middle, us, us * high / middle
            found.setdefault(row["contender"], {})[row["load"]["top"]] = cost
    return sorted(found.items(), key=lambda item: item[1].get(20, max(item[1].values()))[1])
