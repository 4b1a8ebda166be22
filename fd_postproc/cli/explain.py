"""Say what happened, from a flight recorder's file: to the service, or to one request.

FILE is such a file, PID a process that has or had one; of several runs with that number, the one that runs or
ended last, and the others are listed.  Without either it is the engine's that runs; where several run,
they are listed, each with what went wrong, and one has to be named; where none does, it is the one's that
ended last.
REQUEST is a request's id, as the client knows it from the answer; ID_1 is its second choice.  A file may be
read while it is written, and after its process was killed; the file of the worker on the same queue is read
along, if there is one.  Only FastDeploy's processes with the plug-in have files: a plain Receiver or Sender
records nothing.

--json prints one object: "schema" (1), "version" of fd_postproc, "file", "side", "pid", "alive", "channel",
"queue_id", "began" (time of day), "seconds" (from the first entry to the end), "overwritten" and
"damaged" (entries), "steps", "rates", "queue" (the last look at it), "slowest", "gaps", "latency" (seconds
from the worker's call to the end of the step), "findings", and "request" if one was asked for.  A finding
has "severity", "code" (stays the same when texts change), "seconds_ago", "time" and "text".
"node" is the engine's role and rank ("prefill node, rank 1"; "" where there is one engine), "exit_began" the
time of day at which its process began to end, or null.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..explain import story as stories
from ..explain.findings import Finding, as_dict, findings, findings_of_worker
from ..explain.story import story_of, told
from ..explain.timeline import Picture, latencies, span
from ..flight.files import SUFFIX, folders, listed, other_users, process_of, removed_files
from ..flight.reading import Flight, FlightError, now, read
from ..support.checks import plural
from .queue_io import user_name
from .tables import Grid, print_labels, print_table
from .terminal import CommandError, console, note

if TYPE_CHECKING:
    from rich.console import Console


HELP = "say what happened, from a flight recorder's file"
EXAMPLES = """examples:
  fd-postproc explain                      the engine's that runs, or ended last
  fd-postproc explain 4711                 process 4711's, dead or alive
  fd-postproc explain chatcmpl-1f0c        a request's story
  fd-postproc explain old.flight --json    for a program
  fd-postproc explain --follow             a live picture

"""

_PERIOD_S = 0.5
_FOLLOWED, _LAST = 8192, 64  # entries; enough for the last one with its text
_KEPT_LATENCIES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="FILE|PID|REQUEST", help="a file or a process; and, or, a request's id"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object")
    output.add_argument("--follow", action="store_true", help="a live picture, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    if len(args.names) > 2:
        args.usage_error("at most a file or process, and a request")
    if set(args.names) & {"", "-"}:
        args.usage_error("an empty name and - are no file, process or request: name one")
    path, request = _chosen(args.names)
    try:
        if args.follow:
            return _follow(path)
        _explain(path, request, args.json)
    except FlightError as error:
        raise CommandError(str(error)) from None
    return 0


# ---- which file --------------------------------------------------------------------------------------


def _chosen(names: list[str]) -> tuple[str, str | None]:
    """Path, and request."""
    if not names:
        return _an_engines(), None
    if len(names) == 2:
        return _path_of(names[0]), names[1]
    (name,) = names
    is_file = os.path.exists(name) or os.sep in name or name.endswith(SUFFIX)
    if is_file or (name.isascii() and name.isdigit()):
        return _path_of(name), None
    return _knowing(name), name


def _an_engines() -> str:
    """The file to use where none was named; reports on stderr whose it is."""
    heads = _engines()
    running = [head for head in heads if head.writer is not None]
    if len(running) > 1:
        raise _several(running)
    chosen = (running or heads)[0]
    which = "the engine that runs" if running else "the engine that ended last"
    _note_choice(which, chosen, [head for head in heads if head is not chosen])
    return chosen.name


def _note_choice(which: str, chosen: Flight, others: list[Flight]) -> None:
    """Report which file is shown, and how the others are read: processes of several runs share a number."""
    lines = [f"{which}: {_whose(chosen)}"]
    if others:
        noun = "engine" if all(head.side == "engine" for head in others) else "run"
        lines.append(f"{plural(len(others), f'other {noun}')} of an earlier time, or of another queue:")
    lines += [f"  fd-postproc explain {head.name}\n    {_whose(head)}" for head in others]
    note("\n".join(lines))


def _several(running: list[Flight]) -> CommandError:
    """The error that lists running engines, in the order of roles and ranks, with what went wrong in each."""
    running = sorted(running, key=lambda head: head.node)
    lines = "\n".join(f"  {_whose(head)}\n     {_overview(head)}" for head in running)
    return CommandError(
        f"{len(running)} engines run here:\n{lines}\nname one by its process: "
        f"fd-postproc explain {running[0].pid}"
    )


def _overview(head: Flight) -> str:
    """A line on a running engine: its speed, and what went wrong."""
    try:
        picture = Picture(read(head.name), now())
    except (FlightError, OSError) as error:
        return f"cannot be read: {error}"
    codes = Counter(one.code for one, _ in _all_findings(picture, _partner(picture.flight)))
    wrong = ", ".join(code if count == 1 else f"{code} ({count} times)" for code, count in codes.items())
    rates = picture.rates()
    speed = f"{rates['tokens_per_second']:,.0f} tokens a second when it ran last; " if rates else ""
    return speed + (wrong or "nothing went wrong")


def _whose(head: Flight) -> str:
    """Process, service and time of a file."""

    def when(moment: float) -> str:
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
        except (OverflowError, ValueError, OSError):  # any number
            return "?"

    began = head.began_ns / 1e9
    last = began + Picture(head, 0.0).last - head.began
    state, stop = "", Picture(head, 0.0).stop
    if head.writer is None:
        state = f", {'killed or crashed' if stop is None else 'ended'} {when(last)}"
    elif stop is not None:
        state = f", is ending since {when(began + stop - head.began)}"
    return f"{_named(head)}, queue {head.queue_id} ({head.channel}), began {when(began)}{state}"


def _named(flight: Flight, state: str = "") -> str:
    """Side, process and state, and the engine's role and rank where there are several."""
    node = f", {flight.node}" if flight.node else ""
    return f"{flight.side} {flight.pid}{state}{node}"


def _engines() -> list[Flight]:
    """Heads of the engines' files, the newest first."""
    heads, unreadable = _heads([path for path in listed() if os.path.basename(path).startswith("engine")])
    if unreadable is not None and not heads:
        raise CommandError(str(unreadable))
    if not heads:
        raise CommandError(
            f"no flight recorder's file of an engine is in {' or '.join(folders())}{_others()}; name a file, "
            "or set FD_POSTPROC_FLIGHT_FOLDER to its folder. Only FastDeploy's processes with the plug-in "
            "record: a plain Receiver or Sender does not"
        )
    return heads


def _others() -> str:
    """The other users who have files, in words: only their user may look at them."""
    users = other_users()
    if not users:
        return ""
    return f", but files of {', '.join(map(user_name, users))} are there: run explain as that user"


def _heads(paths: list[str]) -> tuple[list[Flight], Exception | None]:
    """Heads of files with their last entries, and why one could not be read."""
    heads, unreadable = [], None
    for path in paths:
        try:
            heads.append(read(path, _LAST))
        except (FlightError, OSError) as error:
            unreadable = error
    return heads, unreadable


def _knowing(request: str) -> str:
    """The newest engine's file that has a request."""
    heads = _engines()
    for head in heads:
        with contextlib.suppress(FileNotFoundError):  # files of ended runs are removed meanwhile
            if story_of(Picture(read(head.name), now()), request) is not None:
                return head.name
    raise CommandError(
        f"of {plural(len(heads), 'file')} of engines in {' or '.join(folders())} none knows "
        f"request {request}: it is not an id as in the engine's log, or its entries have been overwritten"
        f"{_others()}; "
        "a worker's or a copied file is named before the request"
    )


def _path_of(name: str) -> str:
    if os.path.exists(name) or not _is_process(name):
        return name

    found = [path for path in listed() if process_of(path) == int(name)] or removed_files(int(name))
    if not found:
        where = " or ".join(folders())
        raise CommandError(
            f"there is no flight recorder's file of process {name} in {where}{_others()}: FD_POSTPROC_FLIGHT "
            "was 0, or it is another user's, or systemd-logind removed it at its user's logout (RemoveIPC) "
            "and the process has ended (FD_POSTPROC_FLIGHT_FOLDER names another folder)"
        )
    heads = _heads(found)[0] if len(found) > 1 else []
    if not heads:
        return found[0]
    chosen = next((head for head in heads if head.writer is not None), heads[0])
    which = f"the run of process {name} that {'runs' if chosen.writer is not None else 'ended last'}"
    _note_choice(which, chosen, [head for head in heads if head is not chosen])
    return chosen.name


def _is_process(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 12


def _partner(flight: Flight, most: int | None = None) -> Flight | None:
    """The worker's file that belongs to an engine's: same queue, the newest before the next engine began."""
    if flight.side != "engine":
        return None
    folder, queue = os.path.dirname(os.path.abspath(flight.name)), f"-{flight.queue_id}-"
    partner = None
    for path in reversed(listed()):  # the oldest first
        side, found_queue, _ = os.path.basename(path).partition(queue)
        if not found_queue or side not in ("engine", "worker") or os.path.dirname(path) != folder:
            continue
        try:
            found = read(path, most if side == "worker" else _LAST)
        except (FlightError, OSError):
            continue
        if found.key != flight.key or found.boot != flight.boot or found.began < flight.began:
            continue
        if side == "worker":
            partner = found
        elif found.began > flight.began:
            break
    return partner


# ---- once --------------------------------------------------------------------------------------------


def _explain(path: str, request: str | None, as_json: bool) -> None:
    picture = Picture(read(path), now())
    story = None if request is None else story_of(picture, request)
    if request is not None and story is None:
        gone = ", or its entries have been overwritten" if picture.flight.overwritten else ""
        raise CommandError(
            f"{path} does not know request {request}: it is not an id as in the engine's log{gone}, "
            "or another process had it"
        )
    worker = _partner(picture.flight)
    if as_json:
        _print_json(picture, worker, story)
        return
    screen = console()
    _print_head(screen, picture)
    if story is not None:
        for line in told(picture, story):
            screen.print(line, soft_wrap=False)
        return
    _print_findings(screen, picture, worker)
    _print_rates(screen, picture, worker)


def _print_head(screen: Console, picture: Picture) -> None:
    flight = picture.flight
    lasted = span(picture.end - picture.first)

    screen.print(
        f"{_named(flight, f' ({picture.state})')}, queue {flight.queue_id}, {flight.channel}, "
        f"fd_postproc {flight.version}: {lasted} up to {picture.clock(picture.end)}, "
        f"{plural(len(picture.steps), 'step')}",
        style="bold",
    )
    if flight.note:
        screen.print(flight.note, markup=False)
    if flight.overwritten:
        screen.print(f"{flight.overwritten:,} older entries have been overwritten.")
    if flight.damaged:
        screen.print(f"{flight.damaged:,} entries are damaged: another program has written to the file.")


def _all_findings(picture: Picture, worker: Flight | None) -> list[tuple[Finding, Picture]]:
    """The findings, each with the picture that it is of: the engine's, then its worker's."""
    of_engine = findings(picture)
    found = [(one, picture) for one in of_engine]
    if worker is not None:
        other = Picture(worker, picture.now)
        found += [(one, other) for one in findings_of_worker(other, picture, of_engine)]
    return found


def _print_findings(screen: Console, picture: Picture, worker: Flight | None) -> None:
    rows = []
    for one, of in sorted(_all_findings(picture, worker), key=lambda found: found[0].at):
        whose = "" if of is picture else f"worker {of.flight.pid}: "
        rows.append((picture.clock(one.at), one.severity, one.code, whose + one.text))
    if not rows:
        screen.print("Nothing went wrong, as far as the recorder knows.")
        return
    print_table(screen, "What went wrong", Grid(("time", "", "what", ""), rows))


def _print_rates(screen: Console, picture: Picture, worker: Flight | None) -> None:
    if rows := _rate_rows(picture, worker):
        for step in picture.slowest_steps():
            work = f"{span(step.build + step.put)} of work, {plural(step.live, 'request')}"
            rows.append(("slowest", f"{picture.clock(step.at)}  {work}"))
        for gap in picture.longest_gaps():
            side = "worker's" if gap.side == "worker" else "engine's"
            rows.append(("gap", f"{picture.clock(gap.at)}  {span(gap.seconds)} on the {side} side"))
        print_labels(screen, "The last ten seconds of steps; the slowest of all", rows)
    if picture.queues:
        print_labels(screen, f"The queue at {picture.clock(picture.queues[-1].at)}", _queue_rows(picture))


def _rate_rows(picture: Picture, worker: Flight | None) -> list[tuple[str, str]]:
    rates = picture.rates()
    if not rates:
        return []
    rows = [
        ("steps", f"{rates['steps_per_second']:.1f} a second, "
                  f"{rates['tokens_per_second']:,.0f} tokens a second"),
        ("a step", f"{rates['requests']:.1f} requests with tokens, "
                   f"{rates['tokens_per_step']:.1f} tokens, "
                   f"{rates['bytes']:,.0f} bytes"),
        ("stages", f"receive {span(rates['receive_seconds'])} (waiting included), build "
                   f"{span(rates['build_seconds'])}, put {span(rates['put_seconds'])}"),
    ]  # fmt: skip
    if delays := _latencies(picture, worker):
        rows.append(("latency", f"{span(median(delays))} from the worker's call to the end of the step, "
                                f"at most {span(max(delays))}"))  # fmt: skip
    return rows


def _latencies(picture: Picture, worker: Flight | None) -> list[float]:
    return [] if worker is None else latencies(picture.flight, worker)[-_KEPT_LATENCIES:]


def _queue_rows(picture: Picture) -> list[tuple[str, str]]:
    look = picture.queues[-1]
    states = {"": "gone", "Z": "dead", "T": "stopped", "t": "stopped"}
    sender = (
        f"process {look.last_sender}, {states.get(look.state, 'alive')}" if look.last_sender else "nobody yet"
    )
    return [
        ("waiting", f"{plural(look.messages, 'message')}, {look.bytes:,} of {look.max_bytes:,} bytes"),
        ("last sender", sender),
        ("requests", f"{look.running:,} in slots, {look.transfers:,} wait for a cache transfer"),
    ]


def _print_json(picture: Picture, worker: Flight | None, story: Any) -> None:
    flight = picture.flight
    delays = _latencies(picture, worker)
    answer = {
        "schema": 1, "version": __version__, "file": flight.name, "side": flight.side, "pid": flight.pid,
        "node": flight.node, "note": flight.note, "alive": picture.is_alive,
        "exit_began": None if picture.stop is None else picture.clock(picture.stop),
        "channel": flight.channel, "queue_id": flight.queue_id,
        "began": picture.clock(flight.began), "seconds": round(picture.end - picture.first, 6),
        "overwritten": flight.overwritten, "damaged": flight.damaged,
        "steps": len(picture.steps), "rates": picture.rates(),
        "queue": picture.queues[-1]._asdict() if picture.queues else None,
        "slowest": [step._asdict() for step in picture.slowest_steps()],
        "gaps": [gap._asdict() for gap in picture.longest_gaps()],
        "latency": (delays and {"median": sorted(delays)[len(delays) // 2], "most": max(delays)}) or None,
        "findings": [
            as_dict(one, of) | ({} if of is picture else {"worker": of.flight.pid})
            for one, of in _all_findings(picture, worker)
        ],
    }  # fmt: skip
    if story is not None:
        answer["request"] = stories.as_dict(picture, story)
    print(json.dumps(answer))


# ---- live --------------------------------------------------------------------------------------------


def _follow(path: str) -> int:
    from rich.console import Group
    from rich.live import Live

    screen = console()
    with Live(console=screen, auto_refresh=False, transient=False) as live:
        while True:
            picture = Picture(read(path, _FOLLOWED), now())
            worker = _partner(picture.flight, _FOLLOWED)
            lines = _live_lines(picture, worker)
            lines += [
                f"{picture.clock(one.at)} {one.severity} {one.code}: {one.text}"
                for one in findings(picture)[-8:]
            ]
            live.update(Group(*lines), refresh=True)
            if not picture.is_alive:
                return 0
            time.sleep(_PERIOD_S)


def _live_lines(picture: Picture, worker: Flight | None) -> list[str]:
    flight = picture.flight
    rows = _rate_rows(picture, worker) + (_queue_rows(picture) if picture.queues else [])
    if picture.steps:
        rows.append(("last step", f"{span(picture.end - picture.steps[-1].at)} ago"))
    return [
        f"{_named(flight, f' ({picture.state})')}, queue {flight.queue_id}, {flight.channel}  "
        f"{picture.clock(picture.end)}",
        *(f"{name:10} {text}" for name, text in rows),
    ]
