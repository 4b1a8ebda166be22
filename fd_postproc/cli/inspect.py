"""Print a message in readable form: its header, its requests, their tokens and alternatives.

From a queue the message is copied and stays there, if the kernel can do that; the queue's own state is
printed, too.  A file is a recording or one raw payload.  Of a compact frame in pieces each is a message: a
recording's are joined, a queue's is named.
"""

from __future__ import annotations

import argparse
import errno
import os
import time
from typing import TYPE_CHECKING

from .. import queues
from .._core import Step, _frame_head, _is_frame, _Pieces, _service_of, decode, payload_size, peek
from ..core.layout import GPU, Channel, Layout
from ..errors import MalformedMessage, QueueError
from ..recording import MAX_PAYLOAD, Message, Recording, is_recording
from ..support.checks import plural
from .guess import candidates
from .queue_io import (
    QUEUE_HELP,
    QueueName,
    Target,
    add_queue_options,
    find,
    parse_queue_name,
    room,
    user_name,
)
from .streams import STANDARD, name_of, open_input
from .tables import header_rows, print_labels, print_table, requests_table, step_rows
from .terminal import CommandError, add_layout_option, console, index_number, layout_name, positive_int

if TYPE_CHECKING:
    from rich.console import Console


HELP = "print a message of a queue or a file, without taking it"
EXAMPLES = """examples:
  fd-postproc inspect 8002 --channel topk         the oldest message of FastDeploy's queue 8002
  fd-postproc inspect key:0x21500001 --index 3    the fourth one of the queue with this key; channel guessed
  fd-postproc inspect night.fdrec --index 17      a message of a recording
  fd-postproc inspect payload.bin --channel spec  one raw message, without its 8-byte mtype

Write ./8002 for a file whose name is a number.
"""

_HEAD, _GZIP = 96, b"\x1f\x8b\x08"


def _source(text: str) -> QueueName | str:
    return parse_queue_name(text) or text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=_source,
        metavar="QUEUE|FILE",
        help=f"{QUEUE_HELP}; or a recording, or a file with one payload; - is standard input",
    )
    add_queue_options(parser)
    parser.add_argument(
        "--index", type=index_number, default=0, help="which message, 0 being the oldest (default: 0)"
    )
    parser.add_argument("--rows", type=positive_int, default=20, help="requests to print (default: 20)")
    parser.add_argument(
        "--top", type=positive_int, default=3, help="alternatives to print for each token (default: 3)"
    )
    add_layout_option(parser)


def run(args: argparse.Namespace) -> int:
    screen = console()
    if isinstance(args.source, QueueName):
        return _queue(args, screen)
    if args.source != STANDARD and not os.path.lexists(args.source):
        raise CommandError(
            f"{args.source!r}: no such file; a queue is written as its id (a number), key:0x... or msqid:N"
        )
    return _file(args, screen)


def _queue(args: argparse.Namespace, screen: Console) -> int:
    target = find(args.source, args.channel, args.path, args.ftok)
    _print_state(target, screen)
    screen.print()
    try:
        found = peek(target.msqid, args.index)
    except QueueError as error:
        if error.errno != errno.ENOSYS:
            raise
        raise CommandError(
            "this kernel cannot copy a message without taking it (it was built without "
            "CONFIG_CHECKPOINT_RESTORE); take messages into a file ('fd-postproc record'), then inspect it"
        ) from None
    if found is None:
        if args.index == 0:
            screen.print("The queue is empty.")
            return 0
        raise CommandError(f"the queue holds no message {args.index}")
    mtype, payload = found
    return _message(args, screen, payload, mtype, args.channel, args.layout, f"Message {args.index}")


def _print_state(target: Target, screen: Console) -> None:
    from ..doctor.processes import last_user

    info = queues.inspect_queue(target.msqid)
    others = "; other users may use it" if info.mode & 0o066 else ""
    rows = [
        ("key", queues.key_text(info.key) if info.key else "0, private"),
        ("owner, mode", f"{user_name(info.owner)}, {info.mode:04o}{others}"),
        ("waiting", f"{plural(info.messages, 'message')}, {plural(info.bytes, 'byte')}"),
        ("last sender", str(last_user(info.last_sender, info.sent_at))),
        ("last receiver", str(last_user(info.last_receiver, info.received_at))),
    ]
    if info.max_bytes is not None:
        rows.insert(3, ("one message holds", str(room(info.max_bytes))))
    print_labels(screen, f"Queue msqid:{info.msqid}", rows)


def _file(args: argparse.Namespace, screen: Console) -> int:
    file, name = open_input(args.source), name_of(args.source)
    if is_recording(file):
        with Recording(file) as recording:
            recording.name = name
            _print_recording(recording, screen)
            screen.print()
            for message in recording:
                if message.index == args.index:
                    break
            else:
                damage = f"; it is cut short: {recording.cut}" if recording.cut else ""
                raise CommandError(f"{name} holds no message {args.index}{damage}")
            channel = args.channel or recording.channel
            layout = args.layout or recording.layout
            if (joined := _joined(recording, message, layout)) is not None:
                return _print_joined(args, screen, *joined)
            title = f"Message {args.index}, {_time(message.time_ns)}"
            return _message(args, screen, message.payload, message.mtype, channel, layout, title)
    if args.index:
        file.close()
        raise CommandError(f"{name} is not a recording but one payload; it has no message {args.index}")
    with file:
        payload = file.read(MAX_PAYLOAD + 1)
    if len(payload) > MAX_PAYLOAD:
        raise CommandError(f"{name} is longer than {MAX_PAYLOAD} bytes, the most that a message may have")
    if payload.startswith(_GZIP):
        raise CommandError(f"{name} is compressed: gunzip it first")
    mtype = 2 if _is_frame(payload) else 1
    return _message(args, screen, payload, mtype, args.channel, args.layout, f"Payload {name}")


def _joined(recording: Recording, piece: Message, layout: Layout) -> tuple[Step, list[Message]] | None:
    """The step that a message is a piece of, and all its messages; None if there are not all."""
    head = _frame_head(piece.payload, piece.mtype)
    if head is None:
        return None
    channel, _, _, _, count, frame = head
    if channel is None or count == 1:
        return None
    pieces, found = _Pieces(channel, layout), []
    for message in recording:
        other = _frame_head(message.payload, message.mtype)
        if other is None or other[-1] != frame:
            continue
        found.append(message)
        try:
            step = pieces.add(message.payload)
        except MalformedMessage:
            return None
        if step is None:
            continue
        if message.index >= piece.index:
            return step, found
        found.clear()  # the same frame again
    return None


def _print_joined(args: argparse.Namespace, screen: Console, step: Step, messages: list[Message]) -> int:
    first, last = messages[0], messages[-1]
    screen.print(f"A compact frame in {len(messages)} pieces, number {step.seq} of its sender.")
    screen.print()
    title = f"Messages {first.index} to {last.index}, {_time(last.time_ns)}"
    size = sum(len(message.payload) for message in messages)
    _print_step(args, screen, step, first.payload, size, first.mtype, title)
    return 0


def _print_recording(recording: Recording, screen: Console) -> None:
    survey = recording.survey()
    rows = [
        ("messages", f"{survey.messages:,}"),
        (
            "bytes",
            f"{survey.payload_bytes:,}; longest message {survey.longest:,}; file {survey.file_bytes:,}",
        ),
        ("channel", recording.channel or "not recorded"),
        ("layout", layout_name(recording.layout)),
    ]
    if survey.messages:
        seconds = (survey.last_ns - survey.first_ns) / 1e9
        rows.append(("time", f"{_time(survey.first_ns)}, then {seconds:.3f} s"))
    if survey.cut:
        rows.append(("note", survey.cut))
    print_labels(screen, f"Recording {recording.name}", rows)


def _time(ns: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns // 10**9)) + f".{ns % 10**9 // 10**6:03d}"
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"


def _message(
    args: argparse.Namespace,
    screen: Console,
    payload: bytes,
    mtype: int,
    channel: Channel | None,
    layout: Layout | None,
    title: str,
) -> int:

    layout = layout or GPU
    head = _frame_head(payload, mtype)
    of, batch, cols, at, count, (_, seq) = head or (None, 0, 0, 0, 1, (0, 0))
    if count > 1:
        screen.print(
            f"{title}: piece {at + 1} of {count} of a compact frame, number {seq} of its sender: channel "
            f"{of or 'unknown'}, {plural(batch, 'request')}, {plural(cols, 'column')}, {len(payload):,} "
            "bytes.  A Receiver joins the pieces; inspect does so of a recording that has all."
        )
        return 0
    if channel is not None:
        try:
            step = decode(payload, channel, mtype=mtype, layout=layout)
        except MalformedMessage as error:
            others = [candidate.channel for candidate in candidates(payload, mtype, layout)[0]]
            _print_bytes(screen, title, payload, mtype)
            if others:
                screen.print(f"It is a valid message of {', '.join(others)}: use --channel {others[0]}.")
            raise CommandError(str(error)) from None
        if step.channel != channel:
            screen.print(
                f"A {step.channel} message: FastDeploy's workers send these on {channel} while no request of "
                "a batch asks for logprobs."
            )
            screen.print()
    else:
        found, refusals = candidates(payload, mtype, layout)
        if not found:
            _print_bytes(screen, title, payload, mtype)
            reasons = "".join(f"\n  {refusal}" for refusal in refusals.values())
            raise CommandError(f"the message is not valid on any channel:{reasons}")
        channel, step, why = found[0]
        also = "".join(f"; it is also valid as {other.channel} ({other.why})" for other in found[1:])
        if step.dialect == "compact":
            screen.print(f"A compact frame, number {step.seq} of its sender; its header names the channel.")
        else:
            screen.print(f"The channel is a guess: {channel}, because {why}{also}.  --channel settles it.")
        for other, refusal in refusals.items():
            if len(payload) == payload_size(other, layout):
                screen.print(f"It has the length of a full {other} message, too, but: {refusal}")
        screen.print()
    _print_step(args, screen, step, payload, len(payload), mtype, title)
    return 0


def _print_step(
    args: argparse.Namespace, screen: Console, step: Step, payload: bytes, size: int, mtype: int, title: str
) -> None:
    number = _service_of(payload, mtype)
    whose = [("service", f"{number:08x}")] if number else []
    print_labels(screen, title, [*header_rows(step, size, mtype), *whose])
    screen.print()
    rows = list(step_rows(step, args.top, args.rows))
    print_table(screen, "Requests", requests_table(rows, logprobs=step.scores is not None))


def _print_bytes(screen: Console, title: str, payload: bytes, mtype: int) -> None:
    """The beginning of a message that is not understood."""
    screen.print(f"{title}: {len(payload):,} bytes, mtype {mtype}", style="bold")
    for at in range(0, min(len(payload), _HEAD), 16):
        part = payload[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        screen.print(f"  {at:04x}  {part.hex(' ', 4):<35}  {text}")
    if len(payload) > _HEAD:
        screen.print(f"  ... {len(payload) - _HEAD:,} bytes more")
