"""Counts the versions that are active: ``python -m tools.accept.table REPOSITORY NAME=RANGE...``.

Versions are commits of first parents that change the token processor.  docs/fastdeploy.md has the table.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from fd_postproc.fastdeploy import gate
from fd_postproc.fastdeploy.seams import SEAMS
from tools.accept import reading
from tools.accept.accepting import SOCKET

FILE = "fastdeploy/output/token_processor.py"
SHOWN = (
    "token processor",
    "ZeroMQ",
    "delivery",
    "sending",
    "api chunks",
    "api unpacking",
    "api detokenising",
    "api parsers",
)


def main(repository, *named):
    """Print a table of how many versions are active, by line and seam."""
    print(f"| line | versions | {' | '.join(SHOWN)} |\n|---|---:|{'---:|' * len(SHOWN)}")
    for one in named:
        name, _, span = one.partition("=")
        listing = _git(repository, "log", "--first-parent", "--format=%h", *span.split(), "--", FILE).split()
        known = [known_seams(repository, commit) for commit in listing]
        counts = [sum(seam in seams for seams in known) for seam in SHOWN]
        print(f"| {name} | {len(listing)} | {' | '.join(map(str, counts))} |")


def known_seams(repository, commit):
    """The seams of `SHOWN` whose statements are all recorded in a commit."""
    record, new, there, marks = gate.record(), set(), set(), set()
    with tempfile.TemporaryDirectory() as folder:
        _extract(repository, commit, folder)
        for one in reading.functions(Path(folder), record):
            seam = "ZeroMQ" if one.seam == reading.PROCESSOR and one.name in SOCKET else one.seam
            known = record.get(one.seam, {}).get(one.name, {})
            there.add(seam)
            if any(each.digest not in known for each in one.statements):
                new.add(seam)
            elif seam == reading.PROCESSOR:
                marks |= {known[each.digest] for each in one.statements}
    facts = SEAMS[reading.PROCESSOR].facts
    if any(len(signs) != 1 for signs in gate.signs_of(marks, facts).values()):
        new.add(reading.PROCESSOR)
    if reading.PROCESSOR in new:
        new.add("ZeroMQ")
    return there - new


def _extract(repository, commit, folder):
    paths = [path for name in reading.files() for path in (f"{name}.py", f"{name}/__init__.py")]
    names = _git(repository, "ls-tree", "-r", "--name-only", commit, "--", *paths, *reading.FOLDERS).split()
    archive = subprocess.run(
        ["git", "-C", repository, "archive", commit, *names], capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)


def _git(repository, *arguments):
    done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in one for one in sys.argv[2:]):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{' '.join(failed.cmd[:4])}: {failed.stderr.strip()}")
