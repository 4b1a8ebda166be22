"""Tables for people, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(heads: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table; its heads stand between bars, and ``>`` before one says that its column has numbers."""
    titles = [head.strip() for head in heads.split("|")]
    rule = "|".join("---:" if title.startswith(">") else "---" for title in titles)
    lines = [[title.removeprefix(">") for title in titles], *rows]
    head, *others = (f"| {' | '.join(map(str, line))} |" for line in lines)
    return "\n".join([head, f"|{rule}|", *others])


def with_details(table: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """A table, and below it what hangs and differs in each of some rows, which have a name."""
    found = [f"{name}: {line}" for name, row in rows for line in (*row["hangs"], *row["differences"])]
    return "\n".join([table, *found])
