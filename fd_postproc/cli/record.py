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
from typing import TYPE_CHECKING

from .queue_io import QUEUE_HELP, add_queue_options, queue_name
from .terminal import add_layout_option, note, positive_int, positive_number, stop_on_signal

if TYPE_CHECKING:
    from ..recording import RecordingWriter
    from .queue_io import RawQueue

HELP = "take a queue's messages into a file"
EXAMPLES = """examples:
  fd-postproc record 8002 night.fdrec --channel spec_topk     until Ctrl-C
  fd-postproc record key:0x21500001 one.fdrec --count 1       the next message
"""

_LONGEST_NAP_S = 0.001
_TELL_EVERY_S = 1.0
_FLOOD = 2000  # messages a second; a decode step takes 5 ms or more, and some dozens of messages at the most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", type=queue_name, metavar="QUEUE", help=QUEUE_HELP)
    parser.add_argument(
        "file", metavar="FILE", help="recording to make, customarily NAME.fdrec; - is standard output"
    )
    add_queue_options(parser)
    parser.add_argument("--count", type=positive_int, help="stop after this many messages")
    parser.add_argument("--seconds", type=positive_number, help="stop after this long")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    add_layout_option(parser)


def run(args: argparse.Namespace) -> int:
    from ..errors import QueueRemoved
    from ..layout import GPU
    from ..recording import RecordingWriter
    from .queue_io import RawQueue, find
    from .streams import STANDARD, binary_output
    from .tables import plural
    from .terminal import CommandError

    target = find(args.queue, args.channel, args.path, args.ftok)
    if target.note:
        note(target.note)
    queue = RawQueue(target)
    to = binary_output() if args.file == STANDARD else args.file
    name = "standard output" if args.file == STANDARD else args.file
    try:
        recording = RecordingWriter(to, args.channel, layout=args.layout or GPU, force=args.force)
    except FileExistsError as error:
        why = error.strerror or str(error)
        raise CommandError(f"{args.file}: {why}; choose another name, or give --force") from None
    with recording:
        note(
            f"Recording queue {target.msqid} into {name} ({'' if to != args.file else 'mode 0600: '}it holds "
            "user text).  "
            "Messages are taken: an engine does not get them.  Ctrl-C stops."
        )
        removed = False
        began = time.monotonic()
        try:
            _take_all(queue, recording, name, args.count, args.seconds)
        except QueueRemoved:
            removed = True
        finally:
            note(
                f"{plural(recording.messages, 'message')}, {plural(recording.payload_bytes, 'byte')}: "
                f"{name} ({plural(recording.file_bytes, 'byte')})."
            )
            _tell_flood(target.msqid, recording, time.monotonic() - began)
    if removed:
        raise CommandError(
            f"queue {target.msqid} was removed while recording; all earlier messages are in the file"
        )
    return 0


def _tell_flood(msqid: int, recording: RecordingWriter, seconds: float) -> None:
    """Name the cause of more messages than a service can send."""
    from ..log_throttle import last_sender_text

    if recording.messages > _FLOOD * max(seconds, 0.1):
        note(
            f"{recording.messages / max(seconds, 0.1):,.0f} messages a second are more than a service sends: "
            f"{last_sender_text(msqid)}"
        )


def _take_all(
    queue: RawQueue, recording: RecordingWriter, name: str, count: int | None, seconds: float | None
) -> None:
    """Record until an end condition holds.

    A signal only asks to stop, between two messages: raising would lose a message that the kernel has handed
    over already.
    """
    from .tables import plural
    from .terminal import CommandError

    began_wall, began = time.time_ns(), time.monotonic_ns()
    end = None if seconds is None else began + int(seconds * 1e9)
    nap = 0.0
    told = _Teller(recording)
    with stop_on_signal() as signals:
        while not signals and (count is None or recording.messages < count):
            now = time.monotonic_ns()
            if end is not None and now >= end:
                return
            taken = queue.take()
            if taken is None:
                told.maybe(now)
                nap = min(2 * nap + 0.00005, _LONGEST_NAP_S)
                time.sleep(nap)
                continue
            nap = 0.0
            payload, mtype = taken
            try:
                recording.write(payload, mtype, began_wall + time.monotonic_ns() - began)
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else "") or str(error)
                where = _rescued(queue, recording, payload, mtype)
                raise CommandError(
                    f"{name}: {why}; the message in hand ({plural(len(payload), 'byte')}, type {mtype}) "
                    f"{where}; all earlier messages are recorded"
                ) from None
            told.maybe(now)


def _rescued(queue: RawQueue, recording: RecordingWriter, payload: bytes, mtype: int) -> str:
    """Save a taken message that cannot be written in another place; return where."""
    from ..errors import QueueError
    from ..recording import RecordingWriter

    with contextlib.suppress(QueueError):
        before = queue.waiting
        if queue.put(payload, mtype):
            return "was put back into the queue" + (f", behind {before:,} that came later" if before else "")
    # The queue has filled up since, or is gone.  /dev/shm is memory, which a full disk leaves alone.
    path = f"/dev/shm/fd-postproc-rescued-{os.getpid()}.fdrec"
    try:
        with RecordingWriter(path, recording.channel, layout=recording.layout) as rescue:
            rescue.write(payload, mtype)
    except (OSError, ValueError) as error:
        return f"is lost (it could not be put back into the queue; {path}: {error})"
    return f"is in {path}, in memory: the queue is full or gone"


class _Teller:
    """Progress line on a terminal's stderr, updated about once a second."""

    def __init__(self, recording: RecordingWriter) -> None:
        import sys

        self._recording = recording
        self._stream = sys.stderr if sys.stderr.isatty() else None
        self._next = 0

    def maybe(self, now: int) -> None:
        if self._stream is None or now < self._next:
            return
        self._next = now + int(_TELL_EVERY_S * 1e9)
        print(f"\r{self._recording.messages:,} recorded ", end="\r", file=self._stream, flush=True)
