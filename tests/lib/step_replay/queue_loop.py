"""A trace through a real System V queue and the class's own receive loop, in its own thread."""

import functools
import threading

import sysv_ipc

from fd_postproc import queues
from tests.lib.step_replay.traces import payload
from tests.lib.waiting import PATIENCE


class QueueLoop:
    """A way to deliver (see `Replay`): one message is sent, and processed, at a time.

    Every method that needs the queue runs in the thread that made this, so that a test may be in an IPC
    namespace of its own.  `close` ends the loop and removes the queue.
    """

    def __init__(self):
        self.processor = None
        self.queue = None
        self.sent = 0

    def watched(self, cls):
        """`cls`, but it tells when a step is over."""
        turn = self.turn = threading.Condition()

        class Watched(cls):
            finished = 0  # messages that were taken before the loop came round again

            @functools.cached_property
            def parts(self):
                parts = super().parts
                queue, take = parts.queue, parts.queue.next

                def next_step(patience):
                    with turn:
                        if queue.receiver is not None:
                            self.finished = queue.receiver.stats["messages"]
                        turn.notify_all()
                    return take(patience)

                queue.next = next_step
                return parts

        return Watched

    def __call__(self, replay, event):
        if self.processor is None:
            self.processor = replay.processor
            self.queue = sysv_ipc.MessageQueue(
                queues.locate(replay.trace.mode["channel"]), sysv_ipc.IPC_CREAT, max_message_size=1 << 20
            )
            self.processor.run()
        if "message" in event:
            self.sent += 1
            self.queue.send(payload(event))
            with self.turn:
                over = self.turn.wait_for(lambda: self.processor.finished >= self.sent, PATIENCE)
            assert over, "the loop does not go on"
        return event.get("op")

    def close(self):
        if self.processor is not None:
            self.processor.stop(PATIENCE)
            assert not self.processor.worker.is_alive()
