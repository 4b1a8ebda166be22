"""The file of results: what each engine gave, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..pages import write_json
from .load import Load

HERE = Path(__file__).resolve().parent
FILE, ROOT = HERE / "results.json", HERE.parents[1]
PAGES = [ROOT / name for name in ("docs/peers.md", "benchmarks/RESULTS.md", "README.md", "README_CN.md")]
OURS = "fd_postproc"
SHORT = ("FastDeploy, texts", "vLLM", "SGLang", f"{OURS}, texts", f"{OURS}, up to JSON")
TOPS = {None: "none", 0: "sampled", 20: "20"}


def load(path: Path = FILE) -> dict[str, Any]:
    """What has been measured so far: a dictionary by engine."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(engine: str, found: dict[str, Any], path: Path = FILE) -> None:
    """Put an engine's results instead of its earlier ones."""
    whole = load(path)
    whole[engine] = found
    write_json(_short({one: whole[one] for one in sorted(whole)}), path)


def _short(value: Any) -> Any:
    """Numbers with four digits."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def steps(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each way and load of every engine that was not left out."""
    return [row for engine in whole.values() for row in engine.get("steps", [])]


def steps_table(whole: dict[str, Any], texts: bool) -> str:
    """Markdown: CPU us a token from sampled tokens to results, a line for each way."""
    rows = [row for row in steps(whole) if row["load"]["texts"] == texts]
    sizes = sorted({row["load"]["streams"] for row in rows})
    ways: dict[str, dict[Any, dict[str, Any]]] = {}
    for row in rows:
        ways.setdefault(row["contender"], {})[row["load"]["top"], row["load"]["streams"]] = row
    heads = [f"{words}, {size}" for words in TOPS.values() for size in sizes]
    lines = [
        f"| way | {' | '.join(heads)} | spread | kept | longest pause |",
        "|---|" + "---:|" * (len(heads) + 3),
    ]
    last = (20, sizes[-1])
    for name, by_load in sorted(ways.items(), key=lambda way: way[1].get(last, {}).get("us", 0.0)):
        shown = f"**{name}**" if name.startswith(OURS) else name
        costs = [number(by_load.get((top, size), {}).get("us")) for top in TOPS for size in sizes]
        kept = number(by_load.get(last, {}).get("kept"), "B")
        pause = number(by_load.get(last, {}).get("pauses", {}).get("longest ms"), "ms")
        spread = max((row["spread"] for row in by_load.values() if "spread" in row), default=None)
        cells = [*costs, "-" if spread is None else f"{spread:.0%}", kept, pause]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(whole: dict[str, Any]) -> str:
    """Markdown for the README: results with texts, 256 streams, each engine's plain way."""
    ways: dict[str, dict[Any, float]] = {}
    for row in steps(whole):
        load = row["load"]
        if row["contender"] in SHORT and load["texts"] and load["streams"] == 256 and "us" in row:
            ways.setdefault(row["contender"], {})[load["top"]] = row["us"]
    lines = [
        "| 256 requests, 2 tokens each: CPU of a token | no logprobs | 20 of each token |",
        "|---|---:|---:|",
    ]
    for name in sorted(ways, key=lambda name: -max(ways[name].values())):
        lines.append(
            f"| {name} | {number(ways[name].get(None), 'us')} | {number(ways[name].get(20), 'us')} |"
        )
    return "\n".join(lines)


def number(value: float | None, unit: str = "") -> str:
    """Three digits and a unit; "-" for none."""
    if value is None:
        return "-"
    return (f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}").strip()


def versions(whole: dict[str, Any]) -> str:
    """Markdown: what was measured, and what was left out and why."""
    lines = []
    for name, found in whole.items():
        said = ", ".join(f"{package} {version}" for package, version in found.get("versions", {}).items())
        lines.append(f"* {name}: {said or 'left out: ' + found.get('left out', 'not run')}.")
        reasons = {
            (row["contender"], row["left out"]): Load(**row["load"])
            for row in found.get("steps", [])
            if "left out" in row
        }
        lines += [f"* {who}, {what}, is left out: {reason}" for (who, reason), what in reasons.items()]
    return "\n".join(lines)


def blocks(whole: dict[str, Any]) -> dict[str, str]:
    """The text of each marker of the pages."""
    return {
        "numbers": steps_table(whole, texts=False),
        "texts": steps_table(whole, texts=True),
        "versions": versions(whole),
        "short": short_table(whole),
    }
