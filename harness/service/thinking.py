"""Long answers of models that think: the API server with a parser and without, streamed and whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx

from .cases import tidy
from .counters import Counters
from .measure import ACCEPTED, KINDS, Load, api_clock, measure, settle
from .server import Service, running
from .tables import markdown

PARSERS = {
    "no parser": ("", ""),
    "qwen3": ("qwen3", ""),
    "ernie-x1 with tools": ("ernie-x1", "ernie-x1"),
    "ernie-45-vl-thinking with tools": ("ernie-45-vl-thinking", "ernie-45-vl-thinking"),
}
SERVERS = {"FastDeploy": False, "fd_postproc": True}
THINKS = {0: "<think>"}
"""Of streams: they are in the reasoning when they are measured."""


def calls(tokens: int) -> dict[int, str]:
    """What a whole answer says: it thinks, calls a tool, and responds.

    FastDeploy's own parser qwen3 fails where ``</think>`` does not come.
    """
    end = tokens * 3 // 4
    return {
        0: "<think>",
        end: "</think>\n",
        end + 10: '<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>\n<response>\n',
    }


def run(
    tree: Path,
    folder: Path,
    *,
    parsers: list[str],
    streams: list[int],
    after: list[int],
    interval: float,
    seconds: float,
    servers: list[str],
    tokens: int | None = None,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Measure streams everywhere: one server at a time, since an idle one polls, too.

    Then answers of so many `tokens` that are not streamed, where they are asked for.
    """
    rows = []
    for parser in parsers:
        for name in servers:
            place = folder / f"{parser}-{name}"
            with _service(tree, place, "plain", SERVERS[name], parser, THINKS) as service:
                for count in streams:
                    for before in after:
                        with contextlib.suppress(TimeoutError):
                            load = Load(count, "plain", interval, before)
                            row = measure(service, load, seconds=seconds, least=0)
                            rows.append({"server": name, "parser": parser, **row})
                            say(json.dumps(rows[-1]))
                        settle(service)
    return rows + (whole(tree, folder, parsers=parsers, tokens=tokens, say=say) if tokens else [])


def whole(
    tree: Path, folder: Path, *, parsers: list[str], tokens: int, say: Any = print
) -> list[dict[str, Any]]:
    """Ask for an answer of so many tokens with 20 log-probabilities each, not streamed, of both servers."""
    rows = []
    for parser in parsers:
        for name, plug_in in SERVERS.items():
            place = folder / f"{parser}-{name}-whole"
            with _service(tree, place, "21 columns", plug_in, parser, calls(tokens)) as service:
                before, began = api_clock(service), time.monotonic()
                text = _ask(service, tokens)
                rows.append(
                    {
                        "server": name,
                        "parser": parser,
                        "tokens": tokens,
                        "seconds": time.monotonic() - began,
                        "API server s": api_clock(service) - before,
                        "bytes": len(text),
                        "digest": _digest(text),
                    }
                )
                say(json.dumps(rows[-1]))
    return rows


def _ask(service: Service, tokens: int) -> str:
    body = {
        "messages": [{"role": "user", "content": "think"}], "max_tokens": tokens, "min_tokens": tokens,
        "logprobs": True, "top_logprobs": KINDS["21 columns"][1],
    }  # fmt: skip
    Counters(service.counters).pace(0)
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=1200)
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"status {answer.status_code}: {answer.text[:500]}")
    return answer.text


def _digest(text: str) -> str:
    """Of an answer without ids and clocks."""
    plain = json.dumps(tidy(json.loads(text)), sort_keys=True)
    return hashlib.sha256(re.sub("tool-[0-9a-f]{32}", "tool", plain).encode()).hexdigest()[:16]


def _service(tree: Path, folder: Path, kind: str, plug_in: bool, parser: str, says: dict[int, str]) -> Any:
    return running(
        tree, Path(str(folder).replace(" ", "-")), plug_in=plug_in, channel=KINDS[kind][0],
        parsers=PARSERS[parser], says=says, environment={"FD_SERVICE_ACCEPT": str(ACCEPTED)},
    )  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each load of streams, FastDeploy's own beside ours; then one for each whole answer."""
    streamed = [row for row in rows if "requests" in row]
    lines = []
    for load in dict.fromkeys((row["requests"], row["after"], row["parser"]) for row in streamed):
        pair = {
            row["server"]: row for row in streamed if (row["requests"], row["after"], row["parser"]) == load
        }
        cells = [f"{pair[one]['API server ms']:.1f}" if one in pair else "-" for one in SERVERS]
        busy = max(row["load average"] for row in pair.values())
        lines.append((load[0], f"{load[1]:,}", load[2], *cells, f"{busy:.0f}"))
    heads = ">streams | >tokens before | parser | >API server, ms a step: FastDeploy | >fd_postproc | >load"
    told = markdown(heads, lines)
    whole_ = [row for row in rows if "digest" in row]
    lines = [
        (
            row["parser"], row["server"], f"{row['tokens']:,}", f"{row['seconds']:.1f}",
            f"{row['API server s']:.2f} s", f"{row['bytes']:,}",
            "yes" if len({one["digest"] for one in whole_ if one["parser"] == row["parser"]}) == 1 else "NO",
        )
        for row in whole_
    ]  # fmt: skip
    heads = "parser | server | >tokens | >seconds | >API server | >bytes | the same"
    return f"{told}\n\n{markdown(heads, lines)}" if whole_ else told
