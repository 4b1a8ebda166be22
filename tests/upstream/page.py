"""Writes docs/unknown-fastdeploy.md from what became of each change."""

import re
import textwrap
from collections import Counter

from tests.lib.paths import ROOT
from tests.upstream.judge import ASIDE, FAST, GOOD, SLOW

PAGE = ROOT / "docs/unknown-fastdeploy.md"
HEAD = """\
# A FastDeploy that changes

What becomes of the plug-in when FastDeploy changes in one small way? The tests' double of 2.6 is
changed in each of these ways, one at a time, in a process of its own. Then the plug-in decides as in
an engine that starts. Where it is active, its class, and its way through scheduler, sender and
server, are held against FastDeploy's own once more, with more steps, larger batches, and requests
that have what the change looks at.

* *equal and fast*: active, every fast path is taken, results equal. A method whose code is *new* is
  tried with more steps. The log, `doctor` and the gauge `fd_postproc_known{side="engine"}` name it.
* *equal, a part left*: active, results equal, and the named part is FastDeploy's own code.
* *falls back*: FastDeploy's own token processor is used. The reason is one of four: the code looks
  at something that no known version looks at; our class cannot be made; the trial cannot be run with
  FastDeploy's own class; or a result of the trial differs.

Never is it active with another result, and never does it raise in FastDeploy's process. A change in
what the replaced methods look at makes it fall back, reached by a step of the trial or not.
`python -m tests.upstream --only TEXT` prints the exact reason of each change whose name has the text.
"""
LIBRARIES = """
## With other versions of libraries

Of each library that the replaced code works with, in a folder in front of the path: which parts are
in on the double, and whether the tests that work with that library pass
(`python -m tests.upstream.libraries`). On Python 3.11; the wheels of other versions are tried where
they are made (`.ci/wheels`).

| library | versions | parts, tests |
|---|---|---|
"""
REASONS = (
    ("looks at something new", r" looks at |is read by something else|are read by something else"),
    ("our class cannot be made", "ours cannot be made here"),
    ("the trial cannot be run", "cannot tell"),
    ("a result differs", r"ours is|ours has|ours lacks|ours raises|in ours$"),
)
"""Of a change that makes the plug-in fall back: how the page names the reason, and its text."""
PARTS_OF_API = re.compile(r"(?:^|; )(chat|completion)(?:, \w+)?: ")


def write(told):
    _, begin, libraries = PAGE.read_text().partition(LIBRARIES.splitlines()[1])
    PAGE.write_text(page(told) + (f"\n{begin}{libraries}" if begin else ""))


def write_libraries(rows):
    """The table of libraries, at the page's end, from (library, version, text)."""
    changes = PAGE.read_text().partition(LIBRARIES.splitlines()[1])[0].rstrip("\n") + "\n"
    versions = {}
    for library, version, text in rows:
        versions.setdefault((library, _cell(text)), []).append(version)
    table = "".join(f"| {name} | {', '.join(of)} | {text} |\n" for (name, text), of in versions.items())
    PAGE.write_text(f"{changes}{LIBRARIES}{table}")


def page(told):
    """The text of the page."""
    told = [one for one in told if one["outcome"] in GOOD]
    counts = Counter(one["outcome"] for one in told)
    outcomes = ", ".join(f"{counts[one]} {one}" for one in (FAST, SLOW, ASIDE))
    lines = [HEAD, f"{len(told)} changes: {outcomes}."]
    kinds = {}
    for one in told:
        rows = kinds.setdefault(one["kind"], {})
        rows.setdefault((one["outcome"], _note(one)), []).append(one["what"].replace("; ", ", "))
    for kind, rows in kinds.items():
        lines += ["", f"## {kind[0].upper()}{kind[1:]}", ""]
        for (outcome, note), changes in rows.items():
            text = f"* *{outcome}*{note and f', {note}'}: {'; '.join(changes)}"
            text = text.replace("__", "\\_\\_").replace(" _", " \\_")
            lines += textwrap.wrap(
                text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def items(text):
    """The changes that a page names, by kind."""
    told = {}
    for section in text.split("\n## ")[1:]:
        kind, _, rows = section.partition("\n\n")
        rows = " ".join(rows.split()).replace("\\_", "_").split("* *")[1:]
        changes = [row.partition("*")[2].partition(": ")[2].split("; ") for row in rows]
        told[kind.lower()] = [one.strip() for row in changes for one in row]
    return told


def _note(one):
    """What a group of changes has in common beside its outcome."""
    if one["outcome"] == FAST:
        return "new code" if one["why"] else ""
    if one["outcome"] == SLOW:
        return " and ".join(dict.fromkeys(PARTS_OF_API.findall(one["why"]))) or one["why"]
    return next(
        (name for name, text in REASONS if re.search(text, one["why"])), _cell(one["why"]).partition(":")[0]
    )


def _cell(text):
    text = text.split(": no FastDeploy known to this release")[0]
    text = text if len(text) <= 150 else text[:147] + "..."
    return text.replace("|", "/").replace("<", "(").replace(">", ")")
