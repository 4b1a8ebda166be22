"""What the tests of the command line share: running programs, and what is in queues and files."""

import contextlib
import signal
import subprocess
from importlib import resources

import sysv_ipc
from children import FD_POSTPROC

from fd_postproc import data
from fd_postproc.recording import Recording

SHIPPED = resources.files(data)


PROGRAM = [FD_POSTPROC]


@contextlib.contextmanager
def started(*arguments, **options):
    process = subprocess.Popen(
        PROGRAM + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background left SIGINT ignored.
        **{"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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
