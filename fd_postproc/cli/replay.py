"""Send a recording's messages to a queue: the same bytes and types, at the pace they were recorded.

Every message is checked against this machine's limits before the first one is sent.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ..layout import Channel
from .queue_io import QUEUE_HELP, add_queue_options, queue_name
from .terminal import CommandError, add_layout_option, note, positive_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..layout import Layout
    from ..recording import Message, Recording
    from .queue_io import Room, Target

HELP = "send a recording's messages to a queue"
EXAMPLES = """examples:
  fd-postproc replay night.fdrec 8002                     at the recorded pace
  fd-postproc replay night.fdrec 8002 --speed 4           four times as fast
  fd-postproc replay night.fdrec 8002 --full-speed --cut  no pauses; long messages cut to their live slots

The queue must exist, made by the program that receives, unless --create is given.
"""

_NAMED = 10


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
    parser.add_argument(
        "--cut",
        action="store_true",
        help="truncate messages that are too long for this machine after their last live slot",
    )
    parser.add_argument("--create", action="store_true", help="make the queue, mode 0600, if there is none")
    add_layout_option(parser)


def run(args: argparse.Namespace) -> int:
    from ..recording import Recording
    from .queue_io import RawQueue, room
    from .streams import name_of, open_input
    from .tables import plural

    with Recording(open_input(args.file)) as recording:
        recording.name = name_of(args.file)
        channel = args.channel or recording.channel
        if args.cut and channel is None:
            raise CommandError("--cut needs --channel: the recording does not say what its messages are")
        cut_as = channel if args.cut else None
        target = _target(args, channel, recording)
        if target.note:
            note(target.note)
        queue = RawQueue(target)
        prepared = _Prepared(recording, cut_as, args.layout, room(queue.max_bytes))
        total = prepared.check()
        sent = 0
        try:
            # The recording is read a second time, because it may be far larger than memory.
            for message in _paced(prepared, None if args.full_speed else args.speed):
                queue.put_waiting(message.payload, message.mtype, args.timeout)
                sent += 1
        finally:
            were = "was" if total == 1 else "were"
            note(f"{sent:,} of {plural(total, 'message')} {were} sent to queue {target.msqid}.")
        if recording.cut:
            note(f"The recording is cut short: {recording.cut}.")
    return 0


def _target(args: argparse.Namespace, channel: Channel | None, recording: Recording) -> Target:
    from .queue_io import find, find_or_make

    name = args.queue
    if not args.create:
        return find(name, channel, args.path, args.ftok)
    if name.kind == "id" and channel is None and args.path is None:
        channel = _channel_of_frames(recording)
        if channel is None:
            raise CommandError(
                "--create needs --channel or --path: the recording does not say what its messages are"
            )
    return find_or_make(name, channel or "plain", args.path, args.ftok)


def _channel_of_frames(recording: Recording) -> Channel | None:
    """The channel that the first compact frame names; None if there is none."""
    from .._core import CHANNELS, decode
    from ..errors import MalformedMessage

    first = next((head.index for head in recording.heads() if head.mtype == 2), None)
    if first is None:
        return None
    payload = next(message.payload for message in recording if message.index == first)
    for channel in CHANNELS:
        try:
            decode(payload, channel, mtype=2, layout=recording.layout)
        except MalformedMessage as error:
            if error.field != "fragment":  # a piece of a frame also belongs to the channel that it names
                continue
        return channel
    return None


class _Prepared:
    """A recording's messages, prepared for sending.

    Parameters
    ----------
    recording : Recording
    cut_as : str or None
        Channel as whose messages those that are too long are truncated; None leaves them.
    layout : Layout or None
        Replaces the recording's.
    room : Room
    """

    def __init__(
        self, recording: Recording, cut_as: Channel | None, layout: Layout | None, room: Room
    ) -> None:
        self._recording = recording
        self._cut_as = cut_as
        self._layout = layout or recording.layout
        self._room = room

    def check(self) -> int:
        """Check that all messages fit; return their number.

        Raises
        ------
        CommandError
            Naming those that do not.
        """
        self._refuse((head.index, head.size, head.mtype) for head in self._recording.heads())
        # The rest takes unpacking: damage, and how long a message is once it is truncated.
        return self._refuse(((one.index, len(one.payload), one.mtype) for one in self), cut=True)

    def _refuse(self, messages: Iterator[tuple[int, int, int]], cut: bool = False) -> int:
        from .queue_io import remedy
        from .tables import plural

        total, bad, longest = 0, [], 0
        for index, size, mtype in messages:
            total += 1
            if size > self._room.limit and (cut or not self._cut_as):
                longest = max(longest, size)
                bad.append(f"message {index}: {size:,} bytes")
            elif mtype >= 1 << 31:
                bad.append(f"message {index}: type {mtype:#x} does not fit 31 bits")
        if not bad:
            return total
        more = f"\n  and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
        lines = "".join(f"\n  {line}" for line in bad[:_NAMED])
        text = f"nothing was sent: {len(bad):,} of {plural(total, 'message')} cannot be:{lines}{more}"
        if longest:
            text += f"\nOne message may hold {self._room}.  To send them, {remedy(longest)}"
            text += "." if self._cut_as else ", or try --cut."
        raise CommandError(text)

    def __iter__(self) -> Iterator[Message]:
        for message in self._recording:
            if self._cut_as and len(message.payload) > self._room.limit:
                message = self._shortened(message, self._cut_as)
            yield message

    def _shortened(self, message: Message, channel: Channel) -> Message:
        from dataclasses import replace

        from .._core import decode
        from ..errors import MalformedMessage
        from .workload import cut

        try:
            step = decode(message.payload, channel, mtype=message.mtype, layout=self._layout)
        except MalformedMessage as error:
            raise CommandError(f"message {message.index} cannot be cut: {error}") from None
        return replace(message, payload=cut(step, self._layout))


def _paced(messages: _Prepared, speed: float | None) -> Iterator[Message]:
    """Yield messages at their due times."""
    first_ns = None
    for message in messages:
        if speed is not None:
            if first_ns is None:
                first_ns, began = message.time_ns, time.monotonic()
            ahead = (message.time_ns - first_ns) / 1e9 / speed - (time.monotonic() - began)
            while ahead > 0:
                time.sleep(min(ahead, 3600.0))
                ahead = (message.time_ns - first_ns) / 1e9 / speed - (time.monotonic() - began)
        yield message
