"""Send FastDeploy messages through a real queue from a second process, and say what that gains.

They are messages of all kinds as FastDeploy's own ops send them, shipped with the package; every one that
arrives is compared with the recording.  Then one step is timed, beside FastDeploy's step
restated in Python (a lower bound of its time).  --all shows every message and its numbers.  Queues are
private to you (mode 0600) and removed at the end.  Nothing needs root: a message too long for this machine's
limits goes as a compact frame, in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .._version import __version__
from .terminal import (
    busy_machine,
    console,
    positive_int,
    positive_number,
    terminated_as_exit,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .._core import Receiver, Step
    from ..layout import Channel
    from .queue_io import Room
    from .tables import Grid, Row
    from .transfer import Incoming
    from .workload import Item

HELP = "send FastDeploy messages through a real queue, end to end"
EXAMPLES = """examples:
  fd-postproc demo                                the recorded messages, in a few lines
  fd-postproc demo --all                          and every one of them
"""
_EXAMPLE = 256, 2, 21  # batch, accepted tokens, columns: what README's table is about
_ROWS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="show tables of all recorded messages, too")
    parser.add_argument(
        "--repeat",
        type=positive_int,
        help="how often the recorded messages are sent again to measure rates (default: 200)",
    )
    parser.add_argument(
        "--pace",
        type=positive_number,
        metavar="SECONDS",
        help="with --all: pause between messages (default: 0.15 on a terminal, else none)",
    )
    parser.add_argument(
        "--rows", type=positive_int, help="with --all: requests shown of a message (default: 2)"
    )
    parser.add_argument(
        "--top", type=positive_int, help="likewise: alternatives shown for each token (default: what fits)"
    )


def run(args: argparse.Namespace) -> int:
    if not args.all and (args.rows or args.top or args.pace):
        args.usage_error("--rows, --top and --pace are about the tables, which --all shows")
    with terminated_as_exit():
        return _recorded(args)


@dataclass
class _Rates:
    """Counters of the timed part."""

    messages: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def rows(self) -> list[tuple[str, str]]:
        if not self.messages:
            return []
        return [
            (
                "messages",
                f"{self.messages:,} in {self.seconds:.2f} s: {self.messages / self.seconds:,.0f} per second",
            ),
            ("tokens", f"{self.tokens:,}: {self.tokens / self.seconds:,.0f} per second"),
            ("bytes", f"{self.bytes / 1e6:,.1f} MB: {self.bytes / 1e6 / self.seconds:,.1f} MB per second"),
            ("receiver waited", f"{min(self.waited / self.seconds, 1):.0%} of the time for the sender"),
        ]


def _timed(incoming: Incoming, sequence: Iterator[Item]) -> _Rates:
    def counted(name: str) -> float:
        return sum(receiver.stats[name] for receiver in incoming.receivers.values())

    rates = _Rates()
    waited, received = counted("wait_seconds"), counted("bytes")
    start = None
    for item in sequence:
        step = incoming.next(item)
        if start is None:  # the first one waits for the process to start
            start = time.perf_counter()
            waited, received = counted("wait_seconds"), counted("bytes")
        else:
            rates.messages += 1
            rates.tokens += step.rows
    rates.seconds = time.perf_counter() - start if start is not None else 0.0
    rates.waited = counted("wait_seconds") - waited
    rates.bytes = int(counted("bytes") - received)
    return rates


def _microseconds(call: Callable[[], object], loops: int = 20) -> float:
    """CPU time of one call: the best of a few batches, with the least disturbance."""
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        for _ in range(loops):
            call()
        best = min(best, time.thread_time() - start)
    return best / loops * 1e6


def _recorded(args: argparse.Namespace) -> int:
    from .tables import step_rows
    from .transfer import Incoming, SenderProcess, private_queues
    from .workload import recorded_items

    screen = console()
    live = args.all and screen.is_terminal and not screen.is_dumb_terminal
    repeat = args.repeat or 200
    items = list(recorded_items())
    channels = list(dict.fromkeys(item.step.channel for item in items))
    with private_queues(channels) as receivers:
        limits = _room_of(receivers)
        orders = {
            "keys": {channel: receiver.key for channel, receiver in receivers.items()},
            "limit": limits.limit,
            "pause": args.pace or (0.15 if live else 0.0),
            "repeat": repeat,
        }
        shown: list[tuple[Item, Row]] = []
        top = _top(args, screen)
        with SenderProcess(orders) as sender, _live_rows(screen, shown, live) as redraw:
            incoming = Incoming(receivers, sender)
            for item in items:
                step = incoming.next(item)
                shown += ((item, row) for row in step_rows(step, top, args.rows or _ROWS))
                redraw()
            again = (item for _ in range(repeat) for item in items)
            rates = _timed(incoming, again)
    if args.all:
        _print_tables(screen, items, shown, rates, limits, set(incoming.different))
    status = incoming.verdict()
    if status == 0:
        carried = (
            f"{len(items)} of {len(items)} messages as FastDeploy sends them, {repeat + 1} times, "
            f"from process {sender.pid}; every one arrived equal"
        )
        _print_summary(screen, carried, items, rates, limits)
    return status


def _print_tables(
    screen: Console,
    items: list[Item],
    shown: list[tuple[Item, Row]],
    rates: _Rates,
    limits: Room,
    different: set[str],
) -> None:
    from .tables import print_labels, print_table

    for logprobs in (False, True):
        some = [(item, row) for item, row in shown if (item.step.scores is not None) == logprobs]
        title = "Tokens and logprobs, by request" if logprobs else "Tokens, by request"
        print_table(screen, title, _rows_table(some, logprobs))
    messages = _message_tables(items, limits.limit, different)
    print_table(screen, "Messages; sizes in bytes, decoding in us", *messages)
    print_labels(screen, "Rates, the same messages sent again as fast as the sender can", rates.rows())
    _tell_compact([len(item.payload) for item in items], limits, screen)
    screen.print()


def _print_summary(screen: Console, carried: str, items: list[Item], rates: _Rates, limits: Room) -> None:
    """Print the summary: what was carried, its size, the speed."""
    from .._core import decode, encode, payload_size
    from . import restated
    from .tables import print_labels
    from .workload import pieces, synthetic_step

    batch, accepted, columns = _EXAMPLE
    step = synthetic_step("spec_topk", *_EXAMPLE)
    payload, full = encode(step, "compact"), payload_size(step.channel)
    whole = not 0 <= limits.limit < len(payload)
    way = "whole" if whole else f"in {pieces(step, limits.limit)} pieces that fit this machine's limit"
    tensors = restated.tensors_of(step)
    requests = [f"chatcmpl-{slot:032x}" for slot in range(batch)]
    metrics = [restated.Metrics() for _ in requests]
    stock = _microseconds(partial(restated.results_of, tensors, requests, metrics), loops=1)
    ours = _microseconds(lambda: decode(payload, step.channel, mtype=2).tolists())
    topk = next(item.step for item in items if item.step.channel == "topk" and item.step.cols > 1)
    rows = [
        ("carried", carried),
        ("", f"{rates.messages / rates.seconds:,.0f} messages a second; one of them: {_in_a_line(topk)}"),
        ("a step", f"{batch} requests, {accepted} tokens each, {columns - 1} likeliest tokens beside each"),
        ("smaller", f"FastDeploy sends {full:,} bytes for it, fd_postproc {len(payload):,}, {way}"),
        ("faster", f"FastDeploy's results take {stock / 1e3:.1f} ms of Python, fd_postproc's lists "
                   f"{ours / 1e3:.2f} ms: {stock / ours:.0f} times as fast, measured here and now"),
        ("unfair", "FastDeploy's step is restated over NumPy, without its metrics and traces: a lower bound"),
        ("next", "fd-postproc demo --all: every message;  fd-postproc doctor: would FastDeploy use it here?"),
    ]  # fmt: skip
    if busy := busy_machine():
        rows.insert(-1, ("busy", busy))
    screen.print("Tokens and log-probabilities of a language model server, from the worker to the engine")
    print_labels(screen, f"fd_postproc {__version__}, a plug-in for PaddlePaddle FastDeploy 2.x", rows)


def _in_a_line(step: Step) -> str:
    """The first request with a token of a step with logprobs."""
    i = next(i for i, count in enumerate(step.counts) if count > 0)
    ids, scores, ranks = step.logprobs(i).tolists()
    likeliest = ", ".join(
        f"{token} ({score:.2f})" for token, score in zip(ids[0][1:4], scores[0][1:4], strict=True)
    )
    return f"token {ids[0][0]} (log-probability {scores[0][0]:.2f}, rank {ranks[0]}), likeliest {likeliest}"


def _tell_compact(sizes: list[int], limits: Room, screen: Console) -> None:
    """Say which messages were compact frames, and what FastDeploy's own receiver would need."""
    from .queue_io import remedy

    too_big = [size for size in sizes if size > limits.limit]
    if too_big:
        screen.print(
            f"{len(too_big)} of them were sent as compact frames: one message may hold {limits}. That needs "
            f"fd_postproc at both ends. To send them to FastDeploy's own receiver, {remedy(max(too_big))}."
        )


def _top(args: argparse.Namespace, screen: Console) -> int:
    return args.top or (3 if screen.width >= 104 else 2 if screen.width >= 88 else 1)


def _room_of(receivers: dict[Channel, Receiver]) -> Room:
    """Limit of one message in a new queue."""
    from ..queues import inspect_queue
    from .queue_io import room

    return room(inspect_queue(next(iter(receivers.values())).msqid).max_bytes)


def _rows_table(shown: list[tuple[Item, Row]], logprobs: bool) -> Grid:
    """Table rows of several messages' requests, with the message's name at its first row."""
    from .tables import Grid

    rows, name = [], None
    for item, row in shown:
        cells = row if logprobs else row[:3]
        rows.append(("" if item.name == name else item.name, *cells))
        name = item.name
    if logprobs:
        columns = ["message", "req", "count", "token", "rank", "logprob", "next best, id:logprob"]
        return Grid(columns, rows, right=(1, 4, 5))
    return Grid(["message", "req", "count", "tokens"], rows, right=(1,))


def _message_tables(items: list[Item], limit: int, different: set[str]) -> tuple[Grid, Grid]:
    """A table of the messages, and a closer one."""
    from .._core import decode
    from .tables import Grid

    rows = []
    for item in items:
        step, size = item.step, len(item.payload)
        took = _microseconds(partial(decode, item.payload, step.channel))
        logprobs = step.scores is not None
        outcome = "DIFFERENT" if item.name in different else "equal"
        sent = _as_frame(step, limit) if size > limit else "one message"
        numbers = [f"{n:,}" for n in (step.batch, step.rows, step.cols, item.recorded_size, size)]
        numbers[2] = numbers[2] if logprobs else ""
        dialect = (step.dialect or "") if logprobs else ""
        rows.append((item.name, dialect, *numbers, sent, outcome, f"{took:.1f}"))
    sizes = ["batch", "tokens", "cols", "recorded", "cut to"]
    columns = ["message", "dialect", *sizes, "sent as", "arrived", "decode"]
    right = (2, 3, 4, 5, 6, 9)
    closer = [(*row[:7], _BRIEF.get(row[7], row[7].removeprefix("compact, ")), *row[8:]) for row in rows]
    titles = ["FD sent" if title == "recorded" else title for title in columns]
    return Grid(columns, rows, right), Grid(titles, closer, right)


_BRIEF = {"one message": "whole", "compact": "a frame"}


def _as_frame(step: Step, limit: int) -> str:
    from .workload import pieces

    count = pieces(step, limit) if limit >= 0 else 1
    return "compact" if count == 1 else f"compact, {count} pieces"


@contextlib.contextmanager
def _live_rows(screen: Console, shown: list[tuple[Item, Row]], live: bool) -> Iterator[Callable[[], None]]:
    """Show the newest rows on a terminal; the caller prints the final tables."""
    if not live:
        yield lambda: None
        return
    from rich.live import Live

    from .tables import fitting

    def newest() -> Table:
        logprobs = bool(shown) and shown[-1][0].step.scores is not None
        alike = [(item, row) for item, row in shown if (item.step.scores is not None) == logprobs]
        return fitting(screen.width, _rows_table(alike[-max(screen.height - 5, 3) :], logprobs))

    with Live(newest(), console=screen, transient=True, auto_refresh=False) as display:
        yield lambda: display.update(newest(), refresh=True)
