"""The file of results: what each engine gave, and its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .load import Load

HERE = Path(__file__).resolve().parent
FILE, ROOT = HERE / "results.json", HERE.parents[1]
PAGE, READMES = ROOT / "docs" / "peers.md", (ROOT / "README.md", ROOT / "README_CN.md")
OURS = "fd_postproc"
SHORT = ("FastDeploy, texts", "vLLM", "SGLang", f"{OURS}, texts", f"{OURS}, up to JSON")
TOPS = {None: "none", 0: "the sampled token's", 20: "and 20 likeliest"}


def load(path: Path = FILE) -> dict[str, Any]:
    """What has been measured so far: a dictionary by engine."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(engine: str, found: dict[str, Any], path: Path = FILE) -> None:
    """Put an engine's results in the place of its earlier ones; parts that were not run stay."""
    whole = load(path)
    whole[engine] = whole.get(engine, {}) | found
    text = json.dumps(_short({one: whole[one] for one in sorted(whole)}), indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\[[^][{}]*\]", lambda row: json.dumps(json.loads(row[0])), text) + "\n")


def _short(value: Any) -> Any:
    """Numbers with four digits."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def steps_table(whole: dict[str, Any], texts: bool) -> str:
    """Markdown: CPU a token from sampled tokens to results, a line for each way and number of streams."""
    cells: dict[tuple[str, int], dict[Any, dict[str, Any]]] = {}
    for rows in (engine.get("steps", []) for engine in whole.values()):
        for row in rows:
            if row["load"]["texts"] == texts:
                key = row["contender"], row["load"]["streams"]
                cells.setdefault(key, {})[row["load"]["top"]] = row
    lines = [
        "| way | streams | no logprobs | the sampled token's | 20 likeliest too |"
        " kept, 20 | longest pause, 20 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (name, streams), by_top in sorted(cells.items(), key=lambda item: (item[0][1], fastest(item[1]))):
        last = by_top.get(20, {})
        shown = f"**{name}**" if name.startswith(OURS) else name
        costs = [number(by_top.get(top, {}).get("us"), "us") for top in TOPS]
        kept = number(last.get("kept"), "B")
        pause = number(last["pauses"]["longest ms"], "ms") if "pauses" in last else "-"
        lines.append(f"| {shown} | {streams} | {' | '.join(costs)} | {kept} | {pause} |")
    return "\n".join(lines)


def short_table(whole: dict[str, Any]) -> str:
    """Markdown for the README: results with texts, 256 streams, each engine's plain way."""
    ways: dict[str, dict[Any, float]] = {}
    for row in (row for engine in whole.values() for row in engine.get("steps", [])):
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


def fastest(by_top: dict[Any, dict[str, Any]]) -> float:
    """To sort by: the cost of the largest load that a contender took."""
    costs = [row["us"] for _, row in sorted(by_top.items(), key=lambda item: columns(item[0])) if "us" in row]
    return costs[-1] if costs else float("inf")


def servers_table(whole: dict[str, Any]) -> str:
    """Markdown: a line for each load and server."""
    lines = [
        "| streams, logprobs | server | CPU a token, by process | in all | tokens a second and core |"
        " bytes a token | between steps | gap p50 | p99 | memory a stream | load |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [row for engine in whole.values() for row in engine.get("servers", []) if "us in all" in row]
    for row in sorted(rows, key=lambda row: (row["streams"], columns(row["top"]), row["us in all"])):
        by_process = ", ".join(
            f"{name} {value:.0f} us" for name, value in row["us"].items() if name != "stand-in"
        )
        shown = f"**{row['server']}**" if row["server"].startswith(OURS) else row["server"]
        lines.append(
            f"| {row['streams']}, {TOPS[row['top']]} | {shown} | {by_process} | {row['us in all']:.0f} us |"
            f" {row['tokens a second and core']:,.0f} | {number(row.get('bytes a token'), 'B')} |"
            f" {number(row['interval'] * 1000, 'ms')} | {number(row['gap p50 ms'], 'ms')} |"
            f" {number(row['gap p99 ms'], 'ms')} |"
            f" {number(row.get('memory a stream'), 'B')} | {row['load average']:.0f} |"
        )
    return "\n".join(lines)


def columns(top: int | None) -> int:
    """To sort by: how many log-probabilities a token has."""
    return 0 if top is None else top + 1


def number(value: float | None, unit: str) -> str:
    """Three digits and a unit; "-" for none."""
    if value is None or value < 0:  # memory may shrink meanwhile
        return "-"
    if unit == "B" and value >= 1e4:
        return f"{value / 1024:,.0f} KiB"
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def versions(whole: dict[str, Any]) -> str:
    """Markdown: what was measured, and what was left out and why."""
    lines = []
    for name, found in whole.items():
        said = ", ".join(f"{package} {version}" for package, version in found.get("versions", {}).items())
        lines.append(f"* {name}: {said or 'left out: ' + found.get('left out', 'not run')}.")
        rows = [*found.get("steps", []), *found.get("servers", [])]
        reasons = {
            (row.get("contender") or row.get("server"), row["left out"]): shape(row)
            for row in rows
            if "left out" in row
        }
        lines += [f"* {who}, {what}, is left out: {reason}" for (who, reason), what in reasons.items()]
    return "\n".join(lines)


def shape(row: dict[str, Any]) -> str:
    """A row's load in words."""
    return str(Load(**row["load"])) if "load" in row else f"{row['streams']} streams"


def fill(page: Path, texts: dict[str, str]) -> None:
    """Put texts between their markers ``<!-- peers:NAME -->`` and ``<!-- /peers -->``."""

    def text_of(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        return f"{opening}\n{texts[name]}\n\n{closing}" if name in texts else match[0]

    marked = re.compile(r"(<!-- peers:(\w+) -->\n).*?(<!-- /peers -->)", re.DOTALL)
    page.write_text(marked.sub(text_of, page.read_text()))


def blocks(whole: dict[str, Any]) -> dict[str, str]:
    """The text of each marker of docs/peers.md and of both READMEs."""
    return {
        "numbers": steps_table(whole, texts=False),
        "texts": steps_table(whole, texts=True),
        "servers": servers_table(whole),
        "versions": versions(whole),
        "short": short_table(whole),
    }
