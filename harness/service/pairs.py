"""What clients of a prefill and a decode node get, with the plug-in on neither, on both, on one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import cases
from .cases import Case
from .distributed import Nodes
from .namespace import RAISED, Namespace
from .server import UNMENDED
from .tables import markdown, with_details

WAYS = {
    "off/off": (False, False),
    "on/on": (True, True),
    "on/off": (True, False),
    "off/on": (False, True),
}
"""Whether the plug-in is on the prefill node, and on the decode node."""


def few(channel: str, *, draft: bool = False) -> list[Case]:
    """Twelve cases: both paths, streamed and not, ends of each kind, logprobs where the channel has them."""
    names = [
        "chat-prompt0-stream", "completion-prompt1", "chat-prompt3-stream", "chat-length",
        "completion-one-token",
        "chat-choices-stream", "chat-stop-strings-stream", "completion-ids-stream", "chat-metrics",
    ]  # fmt: skip
    if channel.endswith("topk"):
        names += ["chat-logprobs0", "completion-logprobs5-stream", "chat-logprobs20-stream"]
        if draft:
            names[-2:] = ["completion-draft5-stream", "chat-draft20-stream"]
    else:
        names += ["chat-prompt4-stream", "completion-min-tokens-stream", "chat-client-leaves"]
    return named(names, channel, draft=draft)


def named(names: list[str], channel: str, *, draft: bool = False) -> list[Case]:
    """Cases of these names."""
    there = {case.name: case for case in cases.cases(channel, draft=draft)}
    return [there[name] for name in names]


def compare(
    tree: Path,
    folder: Path,
    channel: str,
    *,
    draft: bool = False,
    ways: Sequence[str] = tuple(WAYS),
    every_case: bool = False,
) -> list[dict[str, Any]]:
    """One row for each way: its cases, hangs, and differences from the first way.

    With draft log-probabilities a decode node of FastDeploy's own loses tokens, so all answers are held
    against those of "on/on", and "off/off" is not asked.
    """
    if draft:
        ways = ["on/on", *(way for way in ways if way in ("on/on", "off/on"))]
    wanted = cases.cases(channel, draft=draft) if every_case else few(channel, draft=draft)
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    with (
        Namespace(RAISED) as namespace,
        Nodes(
            tree, folder, namespace, [WAYS[way] for way in ways], channel=channel, draft=draft,
            environment=UNMENDED,
        ) as nodes,
    ):  # fmt: skip
        for number, way in enumerate(ways):
            with nodes.pair(*WAYS[way]) as pair:
                got = cases.ask_both_ways(pair, wanted)
                if not pair.quiet():
                    got["alone"]["left"] = ["requests are running forever"]
                again = pair.dropped("")
            (folder / f"{number}-{way.replace('/', '-')}.json").write_text(json.dumps(got, indent=1))
            first = first or got
            rows.append(
                {
                    "channel": channel, "draft": draft, "way": way,
                    "cases": 2 * len(wanted), "dropped": again,
                    **cases.told_apart(first, got), "sides": sides(nodes, way),
                }
            )  # fmt: skip
    return rows


def sides(nodes: Nodes, way: str) -> list[str]:
    """What is not as the way says: a node with the plug-in whose engine or worker side is not active."""
    wrong = []
    for role, plug_in in zip(("prefill", "decode"), WAYS[way], strict=True):
        log = nodes.nodes[role, plug_in].log()
        for side in "engine", "worker":
            if (f"fd_postproc: {side} side active" in log) != plug_in:
                wrong.append(f"{role} node: {side} side {'not ' * plug_in}active")
    return wrong


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `compare` for people."""
    heads = "channel | prefill/decode | >cases | >differ | >hang | >dropped by FastDeploy's API | sides"
    lines = [
        (
            f"{row['channel']}{' draft' * row['draft']}", row["way"], row["cases"], len(row["differences"]),
            len(row["hangs"]), row["dropped"], "; ".join(row["sides"]),
        )
        for row in rows
    ]  # fmt: skip
    return with_details(markdown(heads, lines), ((row["way"], row) for row in rows))


def failed(rows: list[dict[str, Any]]) -> bool:
    """Whether any row is not as it should be."""
    return any(row["differences"] or row["hangs"] or row["sides"] for row in rows)
