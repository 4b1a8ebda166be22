"""What both suites write: marked texts of pages, and results as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def fill(page: Path, suite: str, texts: dict[str, str]) -> None:
    """Put texts between their markers ``<!-- SUITE:NAME -->`` and ``<!-- /SUITE -->``; others stay."""

    def text_of(match: re.Match[str]) -> str:
        opening, name, closing = match.groups()
        return f"{opening}\n{texts[name]}\n\n{closing}" if name in texts else match[0]

    marked = re.compile(rf"(<!-- {suite}:(\w+) -->\n).*?(<!-- /{suite} -->)", re.DOTALL)
    page.write_text(marked.sub(text_of, page.read_text()))


def write_json(content: Any, path: Path) -> None:
    """A file with a row of numbers a line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\[[^][{}]*\]", lambda row: json.dumps(json.loads(row[0])), text) + "\n")
