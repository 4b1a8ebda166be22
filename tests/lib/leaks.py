"""What a test leaves behind is its own failure, and gone before the next one begins.

Looked at are threads, child processes, the environment and queues that this process has used.
"""

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
import sysv_ipc

from tests.lib.children import kept

# What our own code keeps for good: a thread of the ops, and a variable that an engine sets for workers.
WATCH, PEER = "fd_postproc-watch", "FD_POSTPROC_PEER"
OF_IMPORTS = {"CUSTOM_DEVICE_ROOT"}  # Paddle sets it when it is imported
KEPT_BY_PYTHON = "multiprocessing.resource_tracker"
GRACE_S = 10  # a thread or a child that was told to end is given so long


def _processes():
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _command(process):
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _children(processes):
    """Those of some processes that this one has started, and their commands."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    found = {}
    for process in processes - kept:
        with contextlib.suppress(OSError):  # it has ended
            parent = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                command = _command(process)
                if KEPT_BY_PYTHON not in command:
                    found[process] = command
    return found


def _queues():
    """Queues that this process was the last to send to or to receive from."""
    own = str(os.getpid())
    rows = [line.split() for line in Path("/proc/sysvipc/msg").read_text().splitlines()[1:]]
    return {(int(row[0]), int(row[1])) for row in rows if own in row[5:7]}


def _environment():
    return {
        name: value for name, value in os.environ.items() if name not in {"PYTEST_CURRENT_TEST", *OF_IMPORTS}
    }


def _end(child):
    """Let a child end, or kill it; whether it had to be."""
    for _ in range(int(100 * GRACE_S)):
        with contextlib.suppress(OSError):
            if KEPT_BY_PYTHON in _command(child):  # it had no command line yet
                return False
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                os.waitpid(child, os.WNOHANG)
                return False
        threading.Event().wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


@pytest.fixture(autouse=True)
def nothing_left():
    """What a test has started, made or set is gone at its end; what is not is removed, and fails the test."""
    threads, processes = set(threading.enumerate()), _processes()
    environment, queues = _environment(), _queues()
    yield
    left = []
    for thread in set(threading.enumerate()) - threads:
        if thread.name != WATCH and not type(thread).__module__.startswith("zmq."):  # pyzmq's own, for good
            thread.join(GRACE_S)
            left += [f"thread {thread.name}"] if thread.is_alive() else []
    for child, command in _children(_processes() - processes).items():
        if _end(child):
            left.append(f"child process {child}: {command[:300]}")
    for queue, key in _queues() - queues:
        with contextlib.suppress(sysv_ipc.ExistentialError):
            sysv_ipc.MessageQueue(queue).remove()
        left.append(f"queue {key:#x}")
    after = _environment()
    if after != environment:
        names = {name for name, _ in after.items() ^ environment.items()}
        left += [f"variable {name}" for name in sorted(names - {PEER})]
        for name in names:
            os.environ.pop(name, None)
        os.environ.update({name: environment[name] for name in names & environment.keys()})
    assert not left, f"the test left behind: {', '.join(left)}"
