"""Measure what fd_postproc gives on this machine: queue, save op, decoding and lists.

Its token processor is measured beside FastDeploy's own, on the same steps, where FastDeploy can be imported.

Queues are private to you (mode 0600) and removed at the end; default kernel limits do.  A time is the median
of some passes; the middle half of them lies within the spread.  Where the machine is busy, bench says so: no
number of such a run means anything, so repeat it.
FastDeploy's classes are the installed ones, or those of the source tree that FD_POSTPROC_FASTDEPLOY names;
results are compared before anything is timed.  The full suite, with floors in C and other libraries, is
'python -m benchmarks' in a checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import CHANNELS, has_counts, has_logprobs
from .._version import __version__
from ..layout import Channel
from .terminal import (
    CommandError,
    busy_machine,
    console,
    note,
    positive_int,
    positive_number,
    terminated_as_exit,
)

if TYPE_CHECKING:
    from rich.console import Console

    from .rates import Rate, Spread

HELP = "what fd_postproc gives on this machine, beside FastDeploy's own"
EXAMPLES = """examples:
  fd-postproc bench                                1, 32 and 256 requests, 2 tokens each, 21 columns
  fd-postproc bench --channel topk --columns 6     what a service without speculation sends
  fd-postproc bench --json here.json               and the numbers in a file
"""
SUITE = "The full suite is in the source tree: python -m benchmarks."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=CHANNELS, default="spec_topk", help="default: spec_topk")
    parser.add_argument(
        "--batch",
        type=positive_int,
        nargs="+",
        default=[1, 32, 256],
        metavar="N",
        help="requests of a step (default: 1 32 256)",
    )
    parser.add_argument("--accepted", type=positive_int, help="tokens of each request (default: 2)")
    parser.add_argument(
        "--columns", type=positive_int, help="columns of logprobs, the sampled token's included (default: 21)"
    )
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=0.3,
        help="about how long to measure each number (default: 0.3)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers into a file, too")


def run(args: argparse.Namespace) -> int:
    if args.columns and not has_logprobs(args.channel):
        args.usage_error(f"channel {args.channel} carries no logprobs: --columns does not go with it")
    if args.accepted and not has_counts(args.channel):
        args.usage_error(
            f"channel {args.channel} carries one token a request: --accepted does not go with it"
        )
    from ..needed_limits import Load
    from .rates import rates
    from .side_by_side import side_by_side

    accepted = args.accepted or 2 if has_counts(args.channel) else 1
    columns = args.columns or 21 if has_logprobs(args.channel) else 1
    loads = [Load(batch, accepted, columns) for batch in args.batch]
    screen = console()
    if args.json:
        args.json.open("a").close()  # before minutes of measuring
    before, busy = os.getloadavg()[0], busy_machine()
    if busy:
        note(busy)
    with terminated_as_exit():
        note("measuring queue, save op, decoding and lists")
        try:
            measured = list(rates(args.channel, loads, args.seconds))
        except ValueError as error:
            raise CommandError(str(error)) from None
        _print_rates(screen, f"A step of {_in_words(args.channel, accepted, columns)}", measured)
        note("importing FastDeploy, if it is here")
        beside = side_by_side(args.channel, loads, args.seconds)
    _print_beside(screen, args.channel, beside)
    _print_trust(screen, before, busy, measured, beside)
    if args.json:
        told = _document(args.channel, loads, measured, beside) | {"load_average": before}
        try:
            args.json.write_text(json.dumps(told, indent=1) + "\n")
        except OSError as error:
            raise CommandError(f"{args.json}: {error.strerror}; the numbers are those above") from None
    return 0


def _in_words(channel: Channel, accepted: int, columns: int) -> str:
    tokens = f"{channel}, {accepted} {'token' if accepted == 1 else 'tokens'} a request"
    return f"{tokens}, {columns} columns" if has_logprobs(channel) else tokens


def _us(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def _print_rates(screen: Console, title: str, measured: list[Rate]) -> None:
    from .tables import Grid, print_table

    rows, last = [], None
    for what, batch, took in measured:
        times = _us(took.median), _spread(took), f"{1 / took.median:,.0f}"
        rows.append(("" if what == last else what, f"{batch:,}", *times))
        last = what
    columns = ["", "requests", "us a step", "spread", "steps a second"]
    print_table(screen, title, Grid(columns, rows, right=(1, 2, 3, 4)))


def _spread(took: Spread) -> str:
    return f"{_us(took.low)}-{_us(took.high)}"


def _print_trust(
    screen: Console, before: float, busy: str, measured: list[Rate], beside: dict[str, Any]
) -> None:
    """The load before the measurement, and whether these numbers mean anything."""
    from .rates import Spread

    took = [rate.seconds for rate in measured]
    for step in beside.get("steps", ()):
        took += [Spread(step["seconds"][name], *ends) for name, ends in step["spread"].items()]
    wide = sum(one.is_wide for one in took)
    screen.print(
        f"Load average {before:.1f} before it, {len(os.sched_getaffinity(0))} processors; "
        f"{wide} of {len(took)} spreads are wider than a third of their median."
    )
    if busy or wide > len(took) / 4:
        screen.print(
            "BUSY: repeat. Something else used the processors; these numbers are not this package's."
        )


def _print_beside(screen: Console, channel: Channel, beside: dict[str, Any]) -> None:
    from .rates import Spread
    from .side_by_side import OURS, READ, STOCK
    from .tables import Grid, print_table

    if "why_not" in beside:
        screen.print(f"Not compared with FastDeploy's token processor: {beside['why_not']}. {SUITE}")
        return
    rows = []
    for step in beside["steps"]:
        times = step["seconds"]
        for name in (STOCK, OURS, READ):
            if name in times:
                took = Spread(times[name], *step["spread"][name])
                ratio = "" if name == STOCK else f"{times[STOCK] / took.median:.1f}"
                first = f"{step['batch']:,}" if name == STOCK else ""
                rows.append((first, name, _us(took.median), _spread(took), f"{1 / took.median:,.0f}", ratio))
    first = beside["steps"][0]
    title = f"Token processor: a step of {_in_words(channel, first['accepted'], first['columns'])} -> results"
    columns = ["requests", "whose", "us a step", "spread", "steps a second", "times as fast"]
    print_table(screen, title, Grid(columns, rows, right=(0, 2, 3, 4, 5)))
    screen.print(f"Both from {beside['from']}; results were equal.\n{SUITE}")


def _document_of(took: Spread) -> dict[str, float]:
    return {"seconds": took.median, "low": took.low, "high": took.high}


def _document(
    channel: Channel, loads: list[Any], measured: list[Rate], beside: dict[str, Any]
) -> dict[str, Any]:
    return {
        "fd_postproc": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        "channel": channel,
        "accepted": loads[0].accepted,
        "columns": loads[0].columns,
        "rates": [
            {"what": rate.what, "batch": rate.batch, **_document_of(rate.seconds)} for rate in measured
        ],
        "token_processors": beside,
    }
