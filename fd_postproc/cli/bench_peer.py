"""The second process of ``fd-postproc bench``: sends or receives one step repeatedly.

``bench_peer send|receive CHANNEL KEY BATCH ACCEPTED COLUMNS``.  Stdin closes when the parent ends or has seen
enough; the queue is then removed, since no other process may be left to do it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

import sysv_ipc

from .._core import CHANNELS, Receiver, Sender
from ..errors import QueueError
from .sender import watch_parent
from .workload import synthetic_step


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent decides
    role, name = sys.argv[1:3]
    key, batch, accepted, columns = map(int, sys.argv[3:])
    channel = next(channel for channel in CHANNELS if channel == name)
    step = synthetic_step(channel, batch, accepted, columns)
    with contextlib.suppress(sysv_ipc.ExistentialError, QueueError):  # the parent has removed the queue
        handle = sysv_ipc.MessageQueue(key)
        threading.Thread(target=watch_parent, args=([handle],), daemon=True).start()
        if role == "send":
            with Sender(channel, key=key, dialect="compact") as sender:
                while True:
                    sender.send(step)
        with Receiver(channel, key=key) as receiver:
            arrived = receiver.receive()
            if arrived is None or arrived.tolists() != step.tolists():
                print("the step that arrived is not the one that was saved", file=sys.stderr)
                return 1
            while True:
                receiver.receive()
    return 0


if __name__ == "__main__":
    sys.exit(main())
