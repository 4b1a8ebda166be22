"""The second process of ``fd-postproc demo``: sends, and ends with its parent.

It reads its orders as one line of JSON on stdin, which then stays open: when it closes, the parent is gone,
and the queues are removed, since no other process does it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import sysv_ipc

from .._core import Sender
from ..errors import QueueError
from ..recording import MAX_PAYLOAD
from .workload import Item, recorded_items


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent decides
    orders = json.loads(sys.stdin.readline())
    try:
        handles = {
            channel: sysv_ipc.MessageQueue(key, max_message_size=MAX_PAYLOAD)
            for channel, key in orders["keys"].items()
        }
        frames = {
            channel: Sender(channel, key=key, dialect="compact") for channel, key in orders["keys"].items()
        }
    except (sysv_ipc.ExistentialError, QueueError):
        return 1  # the parent has removed them: it was stopped
    threading.Thread(target=watch_parent, args=(list(handles.values()),), daemon=True).start()
    items = list(recorded_items())

    def send(item: Item) -> None:
        # The parent decides, once, which messages do not fit.
        if len(item.payload) > orders["limit"]:
            frames[item.step.channel].send(item.step)
        else:
            handles[item.step.channel].send(item.payload)

    try:
        for item in items:
            send(item)
            if orders["pause"]:
                time.sleep(orders["pause"])
        for _ in range(orders["repeat"]):
            for item in items:
                send(item)
    except sysv_ipc.Error as error:
        print(f"sending {item.name}, {len(item.payload)} bytes: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sending {item.name}, {len(item.payload)} bytes: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def watch_parent(handles: list[sysv_ipc.MessageQueue]) -> None:
    """Wait for the end of stdin, which the parent holds open; then remove the queues and end."""
    os.read(0, 1)  # not sys.stdin: a thread that holds its lock would break the interpreter's shutdown
    for queue in handles:
        try:
            queue.remove()
        except sysv_ipc.Error:
            continue
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
