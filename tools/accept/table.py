"""Counts the versions that are active: ``python -m tools.accept.table REPOSITORY NAME=RANGE...``.

Versions are commits of first parents that change the token processor.  docs/fastdeploy.md has the table.
"""

import subprocess
import sys

from fd_postproc.fastdeploy.gate.judgements import gate
from tools.accept import accepting, history, prove, reading

FILE = "fastdeploy/output/token_processor.py"
SHOWN = (
    *(reading.PROCESSOR, prove.OVER_ZEROMQ, "delivery", "sending", "api chunks", "api unpacking"),
    *("api detokenising", reading.PARSERS),
)


def main(repository, *named):
    """Print a table of how many versions are active, by line and seam."""
    print(f"| line | versions | {' | '.join(SHOWN)} |\n|---|---:|{'---:|' * len(SHOWN)}")
    for one in named:
        name, _, span = one.partition("=")
        known = [known_seams(tree) for tree, _, _ in history.trees(repository, span, [FILE])]
        counts = [sum(seam in seams for seams in known) for seam in SHOWN]
        print(f"| {name} | {len(known)} | {' | '.join(map(str, counts))} |")


def known_seams(tree):
    """The seams of `SHOWN` whose statements and data are all recorded of a tree."""
    found = reading.functions(tree, gate.record)
    new = accepting.new_in(tree, gate.record, found).parts
    if reading.PROCESSOR in new:
        new.add(prove.OVER_ZEROMQ)
    return {accepting.part_of(one) for one in found} - new


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in one for one in sys.argv[2:]):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{' '.join(failed.cmd[:4])}: {failed.stderr.strip()}")
