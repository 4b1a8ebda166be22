"""Check kernel limits, queues, keys and settings, and say what is wrong and what to do about it.

Nothing is changed.  "ipcrm -q ID" removes a queue that dead processes left; a process that has opened a
queue but not used it yet cannot be seen: stop the service first.

Exit status: 0 nothing is wrong (warnings may be there), 1 at least one error, with --strict also for a
warning, 2 wrong usage.

--json prints one object: "schema" (1), "version" of fd_postproc, "exit_status", "worst" ("ok", "info",
"warning" or "error"), "limits" (msgmax, msgmnb, msgmni), "findings".  A finding has
"severity", "group", "code" (its kind; stays the same when texts change), "subject", "seen", "remedy" (list
of lines), "msqid" (or null) and "data" (numbers; they depend on the code).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .._core import CHANNELS
from .._version import __version__
from ..core.layout import GPU
from ..support.checks import plural
from .queue_io import QUEUE_HELP, queue_name
from .streams import STANDARD
from .terminal import CommandError, add_layout_option, console, positive_int, progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..doctor import Finding, Scope, Snapshot

HELP = "find problems with queues, limits and settings, and say how to fix them"
EXAMPLES = """examples:
  fd-postproc doctor                                     everything
  fd-postproc doctor --queue-id 8002 --channel topk      one service; its channel settles more
  fd-postproc doctor --stock --channel spec_topk         FastDeploy's own ops send: are the limits enough?
  fd-postproc doctor --json --strict                     for scripts
  fd-postproc doctor --report report.json                and what a bug report needs, into a file
"""

SCHEMA = 1

_TITLES = {
    "fastdeploy": "FastDeploy",
    "limits": "Kernel limits",
    "queues": "Queues",
    "keys": "Keys",
    "environment": "Environment",
    "cuda": "CUDA",
}
_STYLES = {"ok": "green", "info": "dim", "warning": "yellow", "error": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--queue-id",
        type=queue_name,
        action="append",
        default=[],
        metavar="QUEUE",
        help=f"only this queue; may be repeated: {QUEUE_HELP} (default: all that look like FastDeploy's)",
    )
    what.add_argument("--channel", choices=CHANNELS, help="what the service sends (default: unknown)")
    what.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="a directory that a service was started in, for the keys of channel spec; may be repeated",
    )
    load = parser.add_argument_group("a step's load, for the sizes of our messages")
    load.add_argument("--batch", type=positive_int, default=256, help="requests (default: 256)")
    load.add_argument(
        "--accepted", type=positive_int, default=2, help="accepted tokens, spec channels (default: 2)"
    )
    load.add_argument(
        "--columns", type=positive_int, default=21, help="logprob columns, topk channels (default: 21)"
    )
    add_layout_option(parser)
    parser.add_argument(
        "--stock", action="store_true", help="FastDeploy's own ops send: limits that are too low are errors"
    )
    parser.add_argument(
        "--no-trial",
        action="store_true",
        help="do not compare the installed FastDeploy's code with the known (takes seconds)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="also write what a bug report needs, as JSON: versions and reasons; no user data; "
        "- prints it, and nothing else",
    )
    parser.add_argument("--strict", action="store_true", help="exit with status 1 for warnings, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from .. import doctor

    scope = _scope(args)
    with progress("comparing FastDeploy's code with the known, which takes seconds" if scope.trial else ""):
        snapshot = doctor.take(scope)
        findings = doctor.examine(scope, snapshot)
    report_only = args.report == STANDARD
    if report_only and args.json:
        args.usage_error("--report - and --json both write to standard output")
    if not (args.json or report_only):
        screen = console()
        _draw(screen, findings, snapshot)
    worst = doctor.worst(findings)
    status = int(worst == "error" or (args.strict and worst == "warning"))
    if args.report:
        _write_report(args.report, doctor.bug_report(findings))
    if args.json:
        _print_json(findings, snapshot, worst, status)
    return status


def _write_report(file: str, report: dict[str, object]) -> None:
    text = json.dumps(report, indent=1)
    if file == STANDARD:
        print(text)
        return
    try:
        with open(file, "x") as out:
            print(text, file=out)
    except FileExistsError:
        raise CommandError(f"--report {file}: the file exists; remove it, or choose another name") from None


def _scope(args: argparse.Namespace) -> Scope:
    from ..doctor import Load, Scope

    layout = args.layout or GPU
    for name, value, most in (
        ("--batch", args.batch, layout.max_batch),
        ("--accepted", args.accepted, layout.max_draft),
        ("--columns", args.columns, layout.top_k + 1),
    ):
        if value > most:
            args.usage_error(f"{name} {value}: the layout holds at most {most}")
    for path in args.path:
        if not os.path.exists(path):
            args.usage_error(f"--path {path}: no such directory")

    def numbers(kind: str) -> frozenset[int]:
        return frozenset(name.number for name in args.queue_id if name.kind == kind)

    return Scope(
        channels=(args.channel,) if args.channel else CHANNELS,
        ids=numbers("id"),
        keys=numbers("key"),
        msqids=numbers("msqid"),
        paths=tuple(args.path),
        layout=layout,
        load=Load(args.batch, args.accepted, args.columns),
        stock=args.stock,
        trial=not args.no_trial,
    )


def _draw(screen: Console, findings: Sequence[Finding], snapshot: Snapshot) -> None:
    limits = snapshot.limits
    titles = dict(_TITLES)
    titles["limits"] += f": a message up to {limits.msgmax:,} bytes (kernel.msgmax), a new queue up to "
    titles["limits"] += f"{limits.msgmnb:,} (kernel.msgmnb)"
    groups = {finding.group for finding in findings}
    for group in (*titles, *sorted(groups - titles.keys())):
        here = [finding for finding in findings if finding.group == group]
        if not here:
            continue
        screen.print(titles.get(group, group), style="bold", soft_wrap=not screen.is_terminal)
        for i, finding in enumerate(here):
            again = any(later.remedy == finding.remedy for later in here[i + 1 :])
            _draw_finding(screen, finding, with_remedy=not again)
        screen.print()
    counts = [
        plural(count, severity)
        for severity in ("error", "warning")
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    screen.print(", ".join(counts) if counts else "Nothing is wrong.", style="bold")


def _draw_finding(screen: Console, finding: Finding, *, with_remedy: bool) -> None:
    from rich.text import Text

    head = Text(f"{finding.severity:<8}", style=_STYLES[finding.severity])
    _line(screen, head, Text(printable(f"{finding.subject}: {finding.seen}")), indent=2)
    for step in finding.remedy if with_remedy else ():
        _line(screen, Text("->"), Text(printable(step)), indent=11)


def _line(screen: Console, head: Text, text: Text, indent: int) -> None:
    """A hanging paragraph on a terminal; elsewhere one line, for grep."""
    from rich.padding import Padding
    from rich.table import Table

    if not screen.is_terminal:
        screen.print(" " * indent, head, " ", text, sep="", soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head, text)
    screen.print(Padding(grid, (0, 0, 0, indent)))


def printable(text: str) -> str:
    """Text without control characters: any user can choose process names and paths."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _print_json(findings: Sequence[Finding], snapshot: Snapshot, worst: str, status: int) -> None:
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "exit_status": status,
        "worst": worst,
        "limits": asdict(snapshot.limits),
        "findings": [asdict(finding) for finding in findings],
    }
    print(json.dumps(document, indent=2))
