"""What the tests of the command line share: running programs, and what is in queues and files."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from importlib import resources

import sysv_ipc

from fd_postproc.cli import main
from fd_postproc.recording import Recording
from tests.lib.children import FD_POSTPROC
from tests.lib.nursery import nursery

SHIPPED = resources.files("fd_postproc.cli") / "demo_data"


def run_main(capsys, *arguments):
    """(status, stdout, stderr) of a command, run in this process."""
    try:
        status = main([*map(str, arguments)])
    except SystemExit as leaving:
        status = leaving.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@contextlib.contextmanager
def started(*arguments, **options):
    process = subprocess.Popen(
        [FD_POSTPROC, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


FORKED = """
sys.stdin = open(0, closefd=False)
sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
from fd_postproc.cli import main
sys.exit(main(sys.argv[1:]))
"""


# Without FastDeploy's double, as the installed program is: the doctor would try it every time, for seconds.
IMPORTS = """
import sys
sys.path[:] = [folder for folder in sys.path if not folder.endswith("fastdeploy_double")]
import fd_postproc.cli.demo, fd_postproc.cli.doctor, rich.live, rich.progress, rich.table
"""


@contextlib.contextmanager
def at_terminal(*arguments, env):
    """A command in a terminal of its own, forked from a process that has made its imports.

    Gives the terminal's other end, and a function that waits for the command's exit status.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    arguments = [str(argument) for argument in arguments]
    process = nursery(IMPORTS)
    process.begin(FORKED, *arguments, files=[os.ttyname(theirs)] * 3, env=env)
    os.close(theirs)
    try:
        yield ours, process.end
    except BaseException:
        process.close()
        process.end()
        raise
    finally:
        os.close(ours)


def all_from(leader, seconds=120):
    """What is written to a terminal until it is closed at the other end."""
    seen, end = b"", time.monotonic() + seconds
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while True:
            if not select.select([leader], [], [], max(end - time.monotonic(), 0))[0]:
                # A command that writes and is not read any more would never end.
                raise AssertionError(f"not ended after {seconds} s; it has written {seen!r}")
            if not (part := os.read(leader, 1 << 16)):
                break
            seen += part
    return seen


def payloads(path):
    with Recording(path) as recording:
        return [message.payload for message in recording]


def take_all(queue):
    found = []
    with contextlib.suppress(sysv_ipc.BusyError):
        while True:
            found.append(queue.receive(block=False))
    return found


def flat(text):
    """Text as it was before it was wrapped."""
    return " ".join(text.split())


def key_of(queue):
    return f"key:{queue.key:#x}"
