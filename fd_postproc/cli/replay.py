"""Send a recording's messages to a queue: the same bytes and types, at the pace they were recorded.

Every message is checked against this machine's limits before the first one is sent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from .._core import decode
from ..core.layout import Channel
from ..errors import MalformedMessage
from ..queues import inspect_queue
from ..recording import Message, Recording
from ..support.checks import plural
from .queue_io import QUEUE_HELP, RawQueue, Room, add_queue_options, find, queue_name, room
from .streams import open_input
from .terminal import CommandError, note, positive_number

HELP = "send a recording's messages to a queue"
EXAMPLES = """examples:
  fd-postproc replay night.fdrec 8002                at the recorded pace
  fd-postproc replay night.fdrec 8002 --speed 4      four times as fast
  fd-postproc replay night.fdrec 8002 --full-speed   without pauses

The queue must exist: the program that receives makes it.
"""
_NAMED = 10
_NAP_S = 0.0005
_TELL_AFTER_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="recording; - is standard input, read to its end first")
    parser.add_argument("queue", type=queue_name, metavar="QUEUE", help=QUEUE_HELP)
    add_queue_options(parser)
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--speed", type=positive_number, default=1.0, help="speed relative to the recording (default: 1)"
    )
    speed.add_argument("--full-speed", action="store_true", help="no pauses at all")
    parser.add_argument(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="give up if the queue stays full for this long (default: never)",
    )


def run(args: argparse.Namespace) -> int:
    with Recording(open_input(args.file)) as recording:
        if recording.channel and args.channel not in (None, recording.channel):
            raise CommandError(
                f"{recording.name} holds messages of channel {recording.channel}, not {args.channel}: leave "
                "--channel out, or name another queue by key: or msqid:"
            )
        _check_channel(recording, args.channel)
        queue = RawQueue(find(args.queue, recording.channel or args.channel, args.path, args.ftok))
        total = _check(recording, room(inspect_queue(queue.msqid).max_bytes))
        sent = 0
        try:
            # The recording is read a second time, because it may be far larger than memory.
            for message in _paced(recording, None if args.full_speed else args.speed):
                _put(queue, message, args.timeout)
                sent += 1
        finally:
            were, where = "was" if total == 1 else "were", f"queue {args.queue} (msqid {queue.msqid})"
            note(f"{sent:,} of {plural(total, 'message')} {were} sent to {where}.")
        if recording.cut:
            note(f"The recording is cut short: {recording.cut}.")
    return 0


def _check_channel(recording: Recording, channel: Channel | None) -> None:
    """Refuse a channel to which the first message, where one says it, does not belong."""
    first = next(iter(recording), None)
    if channel is None or recording.channel is not None or first is None:
        return
    try:
        decode(first.payload, channel, mtype=first.mtype, layout=recording.layout)
    except MalformedMessage as error:
        if error.field == "channel":
            raise CommandError(f"{recording.name}, message 0: {error}; leave --channel out") from None


def _check(recording: Recording, limits: Room) -> int:
    """Check that all messages are whole and fit the queue; return their number."""
    total, bad, longest = 0, [], 0
    for head in recording.heads():
        total += 1
        if head.size > limits.limit:
            longest = max(longest, head.size)
            bad.append(f"\n  message {head.index}: {head.size:,} bytes")
        elif head.mtype >= 1 << 31:
            bad.append(f"\n  message {head.index}: type {head.mtype:#x} does not fit 31 bits")
    if not bad:
        return sum(1 for _ in recording)  # unpacks them, and raises where one is damaged
    text = f"nothing was sent: {len(bad):,} of {plural(total, 'message')} cannot be:"
    text += "".join(bad[:_NAMED]) + (f"\n  and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else "")
    if longest:
        text += (
            f"\nOne message may hold {limits}.  To send them, as root: sysctl -w kernel.msgmax={longest} "
            f"kernel.msgmnb={max(longest, 16384)} or more (containers: docker run --sysctl), then make a "
            "new queue."
        )
    raise CommandError(text)


def _paced(recording: Recording, speed: float | None) -> Iterator[Message]:
    """Yield messages at their due times."""
    first_ns, began = None, time.monotonic()
    for message in recording:
        first_ns = message.time_ns if first_ns is None else first_ns
        due = began + (message.time_ns - first_ns) / 1e9 / speed if speed is not None else 0.0
        while (ahead := due - time.monotonic()) > 0:
            time.sleep(min(ahead, 3600.0))
        yield message


def _put(queue: RawQueue, message: Message, timeout: float | None) -> None:
    """Append a message, waiting while the queue is full; report a wait once, after a second."""
    began, is_reported = time.monotonic(), False
    while not queue.put(message.payload, message.mtype):
        waited = time.monotonic() - began
        if timeout is not None and waited >= timeout:
            raise CommandError(
                f"queue msqid:{queue.msqid} stayed full for {timeout:g} s; does a process read it?"
            )
        if not is_reported and waited >= _TELL_AFTER_S:
            note(f"Queue msqid:{queue.msqid} is full; waiting for its reader.")
            is_reported = True
        time.sleep(_NAP_S)
