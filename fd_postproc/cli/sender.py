"""The second process of ``fd-postproc demo``: ``sender KEY REPEAT`` sends, and ends with its parent.

When stdin closes, the parent is gone: the queue is removed, since no other process does it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

import sysv_ipc

from .._core import CHANNELS, Sender
from ..recording import MAX_PAYLOAD
from .demo import example_item, recorded_items
from .queue_io import room


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent decides
    key, repeat = map(int, sys.argv[1:])
    queue = sysv_ipc.MessageQueue(key, max_message_size=MAX_PAYLOAD)
    threading.Thread(target=_watch_parent, args=(queue,), daemon=True).start()
    frames = {channel: Sender(channel, key=key, dialect="compact") for channel in CHANNELS}
    items, limit = list(recorded_items()), room(queue.max_size).limit
    for _ in range(1 + repeat):
        for item in items:
            if len(item.payload) > limit:
                frames[item.step.channel].send(item.step)
            else:
                queue.send(item.payload)
    frames["spec_topk"].send(example_item().step)


def _watch_parent(queue: sysv_ipc.MessageQueue) -> None:
    """Wait for the end of stdin, which the parent holds open; then remove the queue and end."""
    os.read(0, 1)  # not sys.stdin: a thread that holds its lock would break the interpreter's shutdown
    with contextlib.suppress(sysv_ipc.Error):
        queue.remove()
    os._exit(1)


if __name__ == "__main__":
    main()
