"""Writes docs/unknown-fastdeploy.md from what became of each change."""

from collections import Counter

from tests.lib.paths import ROOT
from tests.upstream.judge import ASIDE, FAST, GOOD, SLOW

PAGE = ROOT / "docs/unknown-fastdeploy.md"
HEAD = """\
# A FastDeploy that changes

What becomes of the plug-in when FastDeploy changes in one small way? The tests' double of 2.6 is
changed in each of these ways, one at a time, in a process of its own (`python -m tests.upstream`).
Then the plug-in decides as in an engine that starts. Where it is active, its class, and its way
through scheduler, sender and server, are held against FastDeploy's own once more, with more steps,
larger batches, and requests that have what the change looks at.

* *equal and fast*: active, every fast path is taken, results equal. Methods whose code is new are
  named by the log, `doctor` and the gauge `fd_postproc_known{side="engine"}`.
* *equal, a part left*: active, results equal, and the named paths are FastDeploy's own code.
* *falls back*: FastDeploy's own token processor is used, for the reason that is given.

Never is it active with another result, and never does it raise in FastDeploy's process. A change in
what the replaced methods look at (a name, an attribute, a number that no known version has there)
makes it fall back, reached by a step of the trial or not. A method with known words in another
order is tried with more steps.
"""


LIBRARIES = """
## With other versions of libraries

Of each library that the replaced code works with, in a folder in front of the path: which parts are
in on the double, and whether the tests that work with that library pass
(`python -m tests.upstream.libraries`). On Python 3.11; the wheels of other versions are tried where
they are made (`.ci/wheels`).

| library | parts, tests |
|---|---|
"""


def write(told):
    _, begin, libraries = PAGE.read_text().partition(LIBRARIES.splitlines()[1])
    PAGE.write_text(page(told) + (f"\n{begin}{libraries}" if begin else ""))


def write_libraries(rows):
    """The table of libraries, at the page's end."""
    changes = PAGE.read_text().partition(LIBRARIES)[0]
    table = "".join(f"| {name} | {_cell(text)} |\n" for name, text in rows)
    PAGE.write_text(f"{changes}{LIBRARIES}{table}")


def page(told):
    """The text of the page."""
    told = [one for one in told if one["outcome"] in GOOD]
    counts = Counter(one["outcome"] for one in told)
    lines = [
        HEAD,
        f"{len(told)} changes: " + ", ".join(f"{counts[one]} {one}" for one in (FAST, SLOW, ASIDE)) + ".",
    ]
    kind = None
    for one in told:
        if one["kind"] != kind:
            kind = one["kind"]
            lines += [
                "",
                f"## {kind[0].upper()}{kind[1:]}",
                "",
                "| change | outcome | left, or why |",
                "|---|---|---|",
            ]
        why = one["why"] if one["outcome"] != FAST else one["why"].replace("unknown: ", "new code: ")
        lines.append(f"| {_cell(one['what'])} | {one['outcome']} | {_cell(why)} |")
    return "\n".join(lines) + "\n"


def _cell(text):
    text = text.split(": no FastDeploy known to this release")[0]
    text = text if len(text) <= 150 else text[:147] + "..."
    return text.replace("|", "/").replace("<", "(").replace(">", ")")
