"""`os.fork` under the address sanitizer: a child that hangs before it has begun is ended, and forked again.

A thread may hold a lock of the sanitizer's allocator at a fork, and gcc's sanitizer before 14 does not take
its locks first.  The child then waits for ever, and pytest-xdist with it, whose pipes it has.
"""

import os
import select
import signal

_fork = os.fork
_BEGINS_S = 20
_SIZES = [16 * n for n in range(1, 17)] + [step << shift for shift in range(6, 10) for step in (5, 6, 7, 8)]
_MANY = 100  # more than a thread's cache holds of a size: each size has a lock


def fork():
    """Fork; the child tells its parent when it has found no lock taken."""
    while True:
        reader, writer = os.pipe()
        pid = _fork()
        if pid == 0:
            os.close(reader)
            for size in _SIZES:
                for _ in [bytearray(size) for _ in range(_MANY)]:
                    pass
            os.write(writer, b"+")
            os.close(writer)
            return 0
        os.close(writer)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        begun = poll.poll(1000 * _BEGINS_S)
        os.close(reader)
        if begun:
            return pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wanted():
    """Whether the sanitizer is loaded."""
    return "asan" in os.environ.get("LD_PRELOAD", "")


def install():
    """Make it every fork of Python code, where the sanitizer is loaded."""
    if wanted():
        os.fork = fork
