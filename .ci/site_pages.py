#!/usr/bin/env python3
"""Gather what the site shows: the pages of mkdocs.yml and every file that they link to.

    .ci/site_pages.py FOLDER

Paths stay as in the tree, so links between pages do, too.  Needs fd_postproc installed: docs/api.md becomes
the whole reference there, from the docstrings.
"""

import re
import runpy
import shutil
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def linked(page: Path) -> list[Path]:
    """Files of the tree that a page links to."""
    targets = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [(page.parent / one).resolve() for one in targets if "://" not in one and "mailto:" not in one]


def reindented(text: str) -> str:
    """Markdown as Python-Markdown reads it.

    A blank line before a list and behind an item of several blocks, four spaces before what an item holds; a
    line that begins with the number of a pull request is no heading.
    """
    out, offset, fenced, blocks = [], 0, False, False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        item = None if fenced else re.match(r"(?:[*-]|\d+\.) +", line)
        if item:
            if out and out[-1] and (blocks or not offset):
                out.append("")
            offset, blocks = len(item[0]), False
        elif line and not line.startswith(" " * (offset or 1)):
            offset = 0
        elif line and offset:
            line = "    " + line[offset:]
        blocks = blocks or not line
        out.append(re.sub(r"^#(?=\d)", r"\\#", line))
    return "\n".join(out) + "\n"


def with_short_labels(reference: str) -> str:
    """The API reference with names alone in the table of contents."""
    return re.sub(r"^(###+) `(\.?\w+)(.*)`$", r'\1 `\2\3` { data-toc-label="\2" }', reference, flags=re.M)


def gather(folder: Path) -> None:
    settings = (root / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"(?:: |extra_css: \[)(\S+\.(?:md|svg|css))\]?$", settings, re.M)
    waiting = [root / name for name in named]
    done = set()
    while waiting:
        path = waiting.pop()
        if path in done or not path.is_relative_to(root):
            continue
        done.add(path)
        if not path.is_file():
            continue  # mkdocs says so
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(reindented(path.read_text(encoding="utf-8")), encoding="utf-8")
            waiting += linked(path)
        else:
            shutil.copyfile(path, target)
    reference = runpy.run_path(str(root / "docs" / "generate_api.py"))["page"]()
    (folder / "docs" / "api.md").write_text(with_short_labels(reference), encoding="utf-8")


if len(sys.argv) != 2:
    sys.exit("usage: .ci/site_pages.py FOLDER")
gather(Path(sys.argv[1]).resolve())
