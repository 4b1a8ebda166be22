"""Move a queue's messages into a file, as they come, until Ctrl-C, --count or --seconds.

The messages are taken: an engine that reads the same queue does not get them.  The file holds user text
(as token ids); it is made with mode 0600, readable by you alone.  It is compressed, has time stamps, and
every message is written before the next one is taken.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

from ..core.layout import GPU
from ..errors import QueueError, QueueRemoved
from ..recording import RecordingWriter
from ..support.checks import plural
from .queue_io import QUEUE_HELP, RawQueue, add_queue_options, find, queue_name
from .streams import STANDARD, binary_output
from .terminal import CommandError, add_layout_option, note, positive_int, positive_number, stop_on_signal

HELP = "take a queue's messages into a file"
EXAMPLES = """examples:
  fd-postproc record 8002 night.fdrec --channel spec_topk     until Ctrl-C
  fd-postproc record key:0x21500001 one.fdrec --count 1       the next message
"""
_NAP_S = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", type=queue_name, metavar="QUEUE", help=QUEUE_HELP)
    parser.add_argument("file", metavar="FILE", help="recording to make: NAME.fdrec; - is standard output")
    add_queue_options(parser)
    parser.add_argument("--count", type=positive_int, help="stop after this many messages")
    parser.add_argument("--seconds", type=positive_number, help="stop after this long")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    add_layout_option(parser)


def run(args: argparse.Namespace) -> int:
    queue = RawQueue(find(args.queue, args.channel, args.path, args.ftok))
    name = "standard output" if args.file == STANDARD else args.file
    try:
        to = binary_output() if args.file == STANDARD else args.file
        recording = RecordingWriter(to, args.channel, layout=args.layout or GPU, force=args.force)
    except FileExistsError as error:
        if os.path.isdir(args.file):
            raise CommandError(f"{name} is a folder: name a file in it") from None
        if os.path.islink(args.file) or not os.path.isfile(args.file):
            raise CommandError(f"{name} is not a regular file: choose another name") from None
        raise CommandError(f"{name}: {error.strerror}; choose another name, or give --force") from None
    with recording:
        note(
            f"Recording queue msqid:{queue.msqid} into {name}: it holds user text.  Messages are taken: an "
            "engine does not get them.  Ctrl-C stops."
        )
        why = ""
        try:
            _take_all(queue, recording, name, args.count, args.seconds)
        except QueueRemoved:
            why = (
                f"queue msqid:{queue.msqid} was removed while recording; all earlier messages are in the file"
            )
        finally:
            note(
                f"{plural(recording.messages, 'message')}, {plural(recording.payload_bytes, 'byte')}: "
                f"{name} ({plural(recording.file_bytes, 'byte')})."
            )
        if recording.is_removed():
            why = f"{name} was removed while recording: what it held is lost"
    if why:
        raise CommandError(why)
    return 0


def _take_all(
    queue: RawQueue, recording: RecordingWriter, name: str, count: int | None, seconds: float | None
) -> None:
    """Record until an end condition holds.

    A signal only asks to stop, between two messages: raising would lose a message that the kernel has handed
    over already.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with stop_on_signal() as signals:
        while not signals and (count is None or recording.messages < count):
            if end is not None and time.monotonic() >= end:
                return
            taken = queue.take()
            if taken is None:
                time.sleep(_NAP_S)
                continue
            try:
                recording.write(*taken)
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else "") or str(error)
                earlier = "went with the file" if recording.is_removed() else "are recorded"
                raise CommandError(
                    f"{name}: {why}; the message in hand ({len(taken[0]):,} bytes, type {taken[1]}) "
                    f"{_rescued(queue, recording, *taken)}; all earlier messages {earlier}"
                ) from None


def _rescued(queue: RawQueue, recording: RecordingWriter, payload: bytes, mtype: int) -> str:
    """Save a taken message that cannot be written in another place; return where."""
    with contextlib.suppress(QueueError):
        if queue.put(payload, mtype):
            return "was put back into the queue, behind what came later"
    # The queue has filled up since, or is gone.  /dev/shm is memory, which a full disk leaves alone.
    path = f"/dev/shm/fd-postproc-rescued-{os.getpid()}.fdrec"
    try:
        with RecordingWriter(path, recording.channel, layout=recording.layout) as rescue:
            rescue.write(payload, mtype)
    except (OSError, ValueError) as error:
        return f"is lost (it could not be put back into the queue; {path}: {error})"
    return f"is in {path}, in memory: the queue is full or gone"
