"""Writes docs/seams.md from the table in `fd_postproc.fastdeploy.gate.seams`.

``python docs/generate_seams.py``; tests/project/test_seams.py compares the page with the table.
"""

import argparse
import textwrap
from pathlib import Path

from fd_postproc.fastdeploy.gate.seams import API, ENGINE, SEAMS, WORKER

PAGE = Path(__file__).with_name("seams.md")
SIDES = {
    ENGINE: "The engine's process",
    API: "The API server's processes",
    WORKER: "The worker's processes",
}
HEAD = """\
# What of FastDeploy is replaced

fd_postproc changes FastDeploy while it runs, in three kinds of processes. This page lists every
change. `python docs/generate_seams.py` makes it from `fd_postproc/fastdeploy/gate/seams.py`, which
also says what takes each one's place.

* Modules are below `fastdeploy`. A name that begins with a dot or a colon is of the same class or
  module as the one before it.
* Without "Replaced", FastDeploy's own stays, and is called less often.
* Each replacement is used where the code of all functions behind "Stands for", and the values behind
  "Data", are known ([how](fastdeploy.md#what-it-does)). Where one is new, FastDeploy's own stays.
* The log says at start-up what is used and what is left, `fd-postproc doctor` before it.
* The gauge `fd_postproc_fast_path{path="NAME"}` is 1 where ours is used, and 0 where it is left.
  `token processor`, `api chunks`, `save ops`, `streams` have none, but `fd_postproc_active`.
* `FD_POSTPROC_DISABLE=1` turns off everything, `FD_POSTPROC_API=0` the API server's side alone.
* When a token processor stops, it restores what it has replaced in FastDeploy's classes.

## Where one of ours raises

FastDeploy's own takes over for that call, as the table says. The log has the first traceback of
each kind, `fd_postproc_fallbacks_total{seam="NAME"}` counts them all. After three in a row
FastDeploy's own stays until the process is started again: the log says so, and the seam's gauge is
0. A wrong result is no exception: only what raises is seen here.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD, "| seam | where ours raises |", "|---|---|"]
    parts += [f"| {seam.name} | {seam.falls_back} |" for seam in SEAMS.values()]
    for side, title in SIDES.items():
        parts.append(f"\n## {title}\n")
        for seam in SEAMS.values():
            if seam.side == side:
                parts += ["", f"### {seam.name}", "", *entry(seam)]
        parts.append("")
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


def entry(seam):
    """Lines of one seam."""
    gain = seam.gain[0].upper() + seam.gain[1:]
    yield from textwrap.wrap(f"{gain}.", 100)
    yield ""
    yield item("FastDeploy's", names(one.removeprefix("fastdeploy.") for one in seam.modules))
    if seam.places:
        yield item("Replaced", names(seam.places))
    functions = [one for one in seam.stands_for if not one.startswith("=")]
    data = [one[1:] for one in seam.stands_for if one.startswith("=")]
    if functions:
        yield item("Stands for", names(functions))
    if data:
        yield item("Data", names(data))


def names(places):
    """Names in a row, each without the module or class that it shares with the one before."""
    shown, before = [], ""
    for one in places:
        end = max(one.rfind("."), one.rfind(":"))
        owner = one[: max(end, 0)]
        shown.append(f"`{one[end:]}`" if owner and owner == before else f"`{one}`")
        before = owner
    return ", ".join(shown)


def item(name, text):
    """One bullet, wrapped."""
    return textwrap.fill(f"* {name}: {text}", 100, subsequent_indent="  ", break_long_words=False)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
