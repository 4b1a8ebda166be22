"""Help text as wide as the terminal."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any


class HelpText(argparse.HelpFormatter):
    """Formatter that wraps paragraphs, but no lines that begin with a space (examples)."""

    def _format_usage(self, *arguments: Any, **named: Any) -> str:
        """Continued below the program's name, or at the left where lines would be too long."""
        text = super()._format_usage(*arguments, **named)
        if max(map(len, text.splitlines())) <= self._width:
            return text
        first, *others = text.rstrip("\n").split("\n")
        return "\n".join([first, *("    " + line.strip() for line in others)]) + "\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for paragraph in text.strip("\n").split("\n\n"):
            if lines:
                lines.append("")
            run: list[str] = []
            for line in paragraph.splitlines():
                if line.startswith(" "):
                    lines += self._wrapped(run, width, indent)
                    run = []
                    lines += self._example(line, width, indent)
                else:
                    run.append(line)
            lines += self._wrapped(run, width, indent)
        return "\n".join(lines)

    @staticmethod
    def _wrapped(run: list[str], width: int, indent: str) -> list[str]:
        return textwrap.wrap(
            " ".join(run), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip

    @staticmethod
    def _example(line: str, width: int, indent: str) -> list[str]:
        """A command and, after two spaces or more, what it does: on two lines if too long."""
        if len(indent + line) <= width:
            return [indent + line]
        margin = indent + line[: len(line) - len(line.lstrip())]
        parts = [part for part in line.strip().split("  ") if part.strip()]
        lines: list[str] = []
        for k, part in enumerate(parts):
            first = margin + "    " * bool(k)
            lines += textwrap.wrap(
                part.strip(), width, initial_indent=first, subsequent_indent=margin + "    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
        return lines
