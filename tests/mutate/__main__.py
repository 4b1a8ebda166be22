"""``python -m tests.mutate``: plant the listed bugs one after another, and say which are not noticed."""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from pathlib import Path

from tests.mutate.bug import ROOMS, Bug, every_bug
from tests.mutate.copy import BuildFailed, Copy

CLONE_NEWIPC = 0x08000000
NOTICED = ("failed", "hung", "not built")


def main() -> int:
    """Run; 0 if enough bugs that are not equivalent were noticed, 1 if not, 2 if tests fail anyhow."""
    options = _options()
    bugs = [bug for bug in every_bug() if _is_chosen(bug, options)]
    if not bugs:
        print("no bug is chosen: --list shows all", file=sys.stderr)
        return 2
    if options.list:
        for bug in bugs:
            print(f"{bug.name}{'   equivalent: ' + bug.equivalent if bug.equivalent else ''}")
        return 0
    # A bug may end the tests' process before its queues are removed: they go with this program, then.
    if ctypes.CDLL(None).unshare(CLONE_NEWIPC) != 0:
        print("no IPC namespace may be made: tests that crash may leave queues (ipcs -q)", file=sys.stderr)
    tried = sorted((bug for bug in bugs if not bug.equivalent), key=lambda bug: bug.is_built)
    with tempfile.TemporaryDirectory(prefix="fd_postproc-mutate-") as own:
        copy = Copy(Path(options.folder or own))
        copy.build()
        if options.first and not _all_pass(copy, tried, options.seconds):
            return 2
        survivors = [bug for bug in tried if not _noticed(copy, bug, options.seconds)]
    share = 100 * (1 - len(survivors) / len(tried)) if tried else 100.0
    print(
        f"{len(bugs)} bugs, {len(bugs) - len(tried)} equivalent; of {len(tried)} others "
        f"{len(tried) - len(survivors)} were noticed ({share:.1f} %)"
    )
    for bug in survivors:
        print(f"SURVIVED {bug.name}: {bug.path}: {bug.original!r} -> {bug.replacement!r}")
    return 1 if share < options.at_least else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--only", action="append", help="bugs whose name holds this text; may be repeated")
    parser.add_argument("--room", action="append", choices=ROOMS, help="bugs of this room; may be repeated")
    parser.add_argument("--list", action="store_true", help="show the bugs, and plant none")
    parser.add_argument("--seconds", type=float, default=240, help="for the tests of one bug (default: 240)")
    parser.add_argument(
        "--at-least", type=float, default=100, help="per cent that have to be noticed (default: 100)"
    )
    parser.add_argument(
        "--folder", help="keep the copy of the tree there, so that less is built the next time"
    )
    parser.add_argument(
        "--first", action="store_true", help="run the tests without a bug first: they have to pass"
    )
    return parser.parse_args()


def _is_chosen(bug: Bug, options: argparse.Namespace) -> bool:
    return (not options.room or bug.room in options.room) and (
        not options.only or any(text in bug.name for text in options.only)
    )


def _all_pass(copy: Copy, bugs: list[Bug], seconds: float) -> bool:
    fine = True
    for tests in dict.fromkeys(bug.tests for bug in bugs):
        outcome, told = copy.run(tests, seconds)
        if outcome != "passed":
            print(f"WITHOUT A BUG {outcome}: {tests}: {told}", flush=True)
            fine = False
    return fine


def _noticed(copy: Copy, bug: Bug, seconds: float) -> bool:
    began = time.monotonic()
    with copy.planted(bug):
        try:
            copy.build(bug)
            outcome, told = copy.run(bug.tests, seconds)
        except BuildFailed as error:
            outcome, told = "not built", str(error).strip().splitlines()[-1]
    print(f"{outcome:11} {time.monotonic() - began:5.0f} s  {bug.name}  {told}", flush=True)
    return outcome in NOTICED


if __name__ == "__main__":
    sys.exit(main())
