"""Be a worker without a GPU: send made-up decode steps to a queue, and do what workers do wrong.

The steps are seeded: the same arguments send the same tokens. The queue is whatever a Receiver, 'record' or a
FastDeploy engine reads. An engine gives a step's tokens to the requests that are in its first slots and
ignores those of slots without one; keep its own worker from sending (kill -STOP) while this one does.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from .._core import CHANNELS
from .misbehaviour import MISHAPS
from .queue_io import QUEUE_HELP, add_queue_options, queue_name
from .terminal import (
    CommandError,
    add_layout_option,
    index_number,
    note,
    parse_load,
    positive_int,
    positive_number,
    terminated_as_exit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._core import Step
    from ..needed_limits import Load
    from .simulated import SimulatedWorker

HELP = "send made-up steps to a queue, as a worker does, with a fault if you like"
EXAMPLES = """examples:
  fd-postproc worker-sim 8002 --channel plain                                   8 requests, 50 steps a second
  fd-postproc worker-sim 8002 --channel topk --load 64,1,21 --dialect compact   logprobs under default limits
  fd-postproc worker-sim 8002 --channel plain --tokens 100 --end-token 2        requests end after 100 tokens
  fd-postproc worker-sim 8002 --channel plain --fault silence --seconds 3       a pause at step 100
  fd-postproc worker-sim 8002 --channel spec --fault malformed --at 10          messages that do not add up

faults, from step --at on:
""" + "".join(f"  {fault.name:<15}  {fault.help}\n" for fault in MISHAPS.values())

_PACE_S = 0.02


def ids_range(text: str) -> tuple[int, int]:
    """``FIRST,LAST``."""
    first, comma, last = text.partition(",")
    if not (comma and all(part.isascii() and part.isdigit() for part in (first, last))):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST, two token ids, e.g. 1000,150000")
    if not int(first) <= int(last) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r}: token ids go from FIRST up to LAST, below {1 << 31}")
    return int(first), int(last)


def token_id(text: str) -> int:
    value = index_number(text)
    if value >= 1 << 31:
        raise argparse.ArgumentTypeError(f"token id {text} does not fit 32 bits")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", type=queue_name, metavar="QUEUE", help=QUEUE_HELP)
    add_queue_options(parser)
    parser.add_argument(
        "--load",
        type=parse_load,
        metavar="BATCH,ACCEPTED,COLUMNS",
        help="requests, tokens of each, logprob columns (default: 8,1,1)",
    )
    parser.add_argument(
        "--dialect",
        choices=("packed", "legacy", "compact"),
        default="packed",
        help="compact needs fd_postproc on the other side (default: packed)",
    )
    parser.add_argument("--steps", type=positive_int, default=500, help="how many (default: 500)")
    parser.add_argument(
        "--pace", type=positive_number, default=_PACE_S, metavar="SECONDS", help="of a step (default: 0.02)"
    )
    parser.add_argument("--full-speed", action="store_true", help="no pauses at all")
    parser.add_argument("--seed", type=index_number, default=0, help="of the tokens (default: 0)")
    parser.add_argument(
        "--ids", type=ids_range, metavar="FIRST,LAST", help="token ids to take (default: 0,149999)"
    )
    parser.add_argument(
        "--tokens", type=positive_int, help="steps after which all requests end; needs --end-token"
    )
    parser.add_argument(
        "--end-token", type=token_id, metavar="ID", help="the token that ends a request, eos_token_id"
    )
    parser.add_argument("--fault", choices=MISHAPS, metavar="FAULT", help=f"one of {', '.join(MISHAPS)}")
    parser.add_argument("--at", type=index_number, default=100, metavar="STEP", help="(default: 100)")
    parser.add_argument(
        "--seconds", type=positive_number, help="how long the silence lasts (default: until interrupted)"
    )
    parser.add_argument("--times", type=positive_int, default=200, help="steps of a burst (default: 200)")
    parser.add_argument(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="give up if the queue stays full, or away, for this long (default: never)",
    )
    parser.add_argument("--create", action="store_true", help="make the queue, mode 0600, if there is none")
    add_layout_option(parser)


def run(args: argparse.Namespace) -> int:
    from .._core import encode
    from ..layout import GPU
    from ..needed_limits import Load
    from .queue_io import find, find_or_make
    from .simulated import SimulatedWorker
    from .tables import plural
    from .workload import misfit

    if args.channel is None:
        args.usage_error(f"--channel is needed: what the reader expects, one of {', '.join(CHANNELS)}")
    if (args.tokens is None) != (args.end_token is None):
        args.usage_error("--tokens and --end-token go together")
    if args.seconds is not None and args.fault != "silence":
        args.usage_error("--seconds goes with --fault silence")
    load = args.load or Load(8, 1, 1)
    if why := misfit(args.channel, load):
        args.usage_error(why)
    layout = args.layout or GPU
    steps = _steps(args, load)
    try:
        first = next(steps)
        encode(first, args.dialect, layout=layout)
    except ValueError as error:
        raise CommandError(str(error)) from None
    target = (find_or_make if args.create else find)(args.queue, args.channel, args.path, args.ftok)
    if target.note:
        note(target.note)
    worker = SimulatedWorker(target, args.channel, args.dialect, layout, args.timeout)
    worker.pace = 0.0 if args.full_speed else args.pace
    if args.fault is not None:
        MISHAPS[args.fault].check(worker, args, first)
    note(
        f"Sending {plural(args.steps, 'step')} of {plural(load.batch, 'request')} to queue {target.msqid}, "
        f"channel {args.channel}, {args.dialect}; Ctrl-C ends it."
    )
    with terminated_as_exit(), contextlib.closing(worker):
        try:
            _work(worker, args, first, steps)
        finally:
            note(worker.account())
    return 0 if worker.sent else 1


def _steps(args: argparse.Namespace, load: Load) -> Iterator[Step]:
    """Seeded steps without end; each ``--tokens``-th ends all requests."""
    from .workload import IDS, ending_step, synthetic_steps

    steps = synthetic_steps(args.channel, load, args.seed, args.ids or IDS)
    if args.tokens is None:
        yield from steps
    end = ending_step(args.channel, load.batch, args.end_token)
    for number, step in enumerate(steps, 1):
        yield end if number % args.tokens == 0 else step


def _work(worker: SimulatedWorker, args: argparse.Namespace, first: Step, steps: Iterator[Step]) -> None:
    fault = MISHAPS[args.fault] if args.fault is not None else None
    due = time.monotonic()
    step = first
    for number in range(args.steps):
        if fault is not None and number == args.at:
            note(f"Step {number}: {fault.name}: {fault.help}.")
            fault.begin(worker, args, step)
            due = time.monotonic()  # what the fault took is not caught up with
        worker.send(step)
        due += worker.next_pause()
        if (ahead := due - time.monotonic()) > 0:
            time.sleep(ahead)
        step = next(steps)
