"""The command line, used as a person uses it: real queues, processes, signals and terminals."""

import ctypes

import pytest

from fd_postproc import queues
from fd_postproc.cli import main


@pytest.fixture
def own_namespace():
    """Default limits and nobody else's queues; none may be left behind.  True if that was permitted."""
    libc, new_ipc = ctypes.CDLL(None), 0x08000000
    with open("/proc/thread-self/ns/ipc") as outside:
        if libc.unshare(new_ipc) != 0:
            yield False
            return
        try:
            yield True
            assert queues.list_queues() == []
        finally:
            libc.setns(outside.fileno(), new_ipc)


@pytest.fixture
def run(capsys):
    """A function that runs a command and gives (status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
