"""Measure fd_postproc on this machine, beside a floor in C and beside other ways to do the same.

Every answer is checked before it is timed.  Times are taken by pyperf in processes of their own, those to be
compared in turn; ratios survive a busy machine better than times do, but close other programs all the same.
Queues are private to you and removed at the end; no limit of this machine is changed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fd_postproc.cli.help_text import HelpText
from fd_postproc.cli.terminal import CommandError, note, positive_int

from . import FULL_ROUNDS, QUESTIONS, QUICK_ROUNDS, extensions

if TYPE_CHECKING:
    from .cases import Comparison
    from .runner import Effort, Found

EXAMPLES = f"""questions: {", ".join(QUESTIONS)}

columns: spread is half the distance between the quartiles; speed-up is the time of FastDeploy's way divided
by this one's; "/ floor" is this one's time divided by that of C that does the same and checks nothing.  With
a spread above 30 % a ratio is "noisy".  A case such as "spec_topk b256 a2 c21" is channel, requests, accepted
tokens of each, logprob columns.

examples:
  python -m benchmarks --quick                       all questions, shortly: a minute or two
  python -m benchmarks                               all questions, as the results page has them
  python -m benchmarks receive save                  two questions
  python -m benchmarks --quick --json before.json    keep the timings; then, after a change:
  python -m benchmarks --quick --compare before.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "questions",
        nargs="*",
        metavar="QUESTION",
        help=f"what to measure: {', '.join(QUESTIONS)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--rounds",
        type=positive_int,
        metavar="N",
        help=f"processes for each contender (default: {FULL_ROUNDS}, or {QUICK_ROUNDS} with --quick)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all timings in pyperf's format")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="also show the times divided by those that --json wrote"
    )


def run(args: argparse.Namespace) -> int:
    """Progress on stderr, tables on stdout."""
    try:
        from . import report, runner
    except extensions.NotBuilt as error:
        raise CommandError(str(error)) from None
    if args.json and args.json.exists():
        raise CommandError(f"{args.json} is there already: move it, or name another file")
    try:
        runner.require("pyperf")
        before = runner.load(args.compare) if args.compare else None
        todo = runner.plan(tuple(args.questions) or QUESTIONS)
    except (ModuleNotFoundError, ValueError, OSError) as error:
        raise CommandError(str(error)) from None
    effort = runner.QUICK if args.quick else runner.FULL
    if args.rounds:
        effort = replace(effort, rounds=args.rounds)
    found: Found = []
    interrupted, failure = False, ""
    try:
        _measure(todo, effort, found)
    except runner.BenchmarkFailed as error:
        failure = str(error)
    except KeyboardInterrupt:
        note("benchmarks: interrupted; what was measured so far:")
        interrupted = True
    print(report.report(found, before))
    if before is not None:
        for difference in runner.differences(before, found):
            note(f"benchmarks: {args.compare} was measured with another {difference}")
    if args.json and found:
        runner.save(found, args.json)
    if failure:
        raise CommandError(failure)
    return 130 if interrupted else 0


def _measure(todo: list[tuple[str, Comparison]], effort: Effort, found: Found) -> None:
    from . import runner

    for done in runner.measure(todo, effort):
        found.append(done)
        note(f"benchmarks: {len(found)} of {len(todo)}: {done[0]}: {done[1].case}")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed (one line on stderr says why), 130 interrupted, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=EXAMPLES, formatter_class=HelpText
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except CommandError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
