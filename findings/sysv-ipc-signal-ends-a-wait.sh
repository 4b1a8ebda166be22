#!/usr/bin/env bash
# Guess: after a handled signal the wait goes on, as Python's own calls do since 3.5 (PEP 475).
# Seen: sysv_ipc 1.2.0 runs the handler, then raises sysv_ipc.Error, which is no OSError and has no errno; the
# message that comes later is still there.
# Why it matters: a receiver that catches InterruptedError does not catch this; a profiler's timer ends the loop.
. "$(dirname "$0")/in-a-temporary-folder" sysv_ipc==1.2.0
python > seen <<'P'
import signal

import sysv_ipc

queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX)
try:
    signal.signal(signal.SIGALRM, lambda *given: print("the handler runs"))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        queue.receive()
    except Exception as error:
        print(type(error).__name__, isinstance(error, OSError), error)
    queue.send(b"later")
    print(queue.receive())
finally:
    queue.remove()
P
seen_is <<'S'
the handler runs
Error False Signaled while waiting
(b'later', 1)
S
