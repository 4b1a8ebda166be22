"""Which process the engine is, and whether it lives: real processes that listen, stop and die."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from fd_postproc.fastdeploy.api.engine_process import Unknown, listener, socket_file
from fd_postproc.support import process_stat
from fd_postproc.support.process_stat import KnownProcess
from tests.lib.rows import each
from tests.lib.waiting import until

LISTEN = """
import os, socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
child = os.fork() if sys.argv[2:] == ["fork"] else 1
if child:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.fixture
def listening(tmp_path):
    """Starts a process that listens at a path, and ends it afterwards."""
    started = []

    def start(*arguments):
        path = str(tmp_path / f"{len(started)}.socket")
        process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, path, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, path, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_process_that_listens_is_known_until_it_is_killed(listening):
    """Stopped it lives; killed it is gone before its parent has noticed."""
    process, path, _ = listening()
    engine = listener(path)
    assert engine.pid == process.pid
    process.send_signal(signal.SIGSTOP)
    until(lambda: process_stat.process_stat(process.pid)[0] == "T")
    assert engine.is_alive()
    assert listener(path) == engine
    process.kill()
    until(lambda: not engine.is_alive())
    assert process_stat.process_stat(process.pid)[0] == "Z"
    process.wait()
    assert not engine.is_alive()
    with pytest.raises(Unknown, match=r"0\.socket: ECONNREFUSED"):
        listener(path)


def test_a_child_that_holds_the_socket_is_not_the_engine(listening):
    """FastDeploy's API processes are forked from the engine: its socket outlives it there."""
    process, path, child = listening("fork")
    try:
        assert listener(path).pid == process.pid
        process.kill()
        process.wait()
        with pytest.raises(Unknown, match=f"process {process.pid}, which made .* (has ended|cannot be seen)"):
            listener(path)
    finally:
        os.kill(child, signal.SIGKILL)


def fields(state, threads=1):
    return [state, *"1" * 16, str(threads), "0", "77"]


@each(
    "told, start, alive",
    [
        (fields("S"), "77", True),
        (fields("S"), "1", False),  # another process of the same number
        (PermissionError(), "77", True),  # what cannot be read lives
        (OSError(24, "too many open files"), "77", True),
        (fields("Z"), "77", False),
        (fields("Z", threads=2), "77", True),  # its first thread has ended
        (fields("X"), "77", False),
    ],
)
def test_what_the_kernel_says_of_a_process(monkeypatch, told, start, alive):
    def process_stat_of(pid):
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(process_stat, "process_stat", process_stat_of)
    assert KnownProcess(1, start).is_alive() is alive


def test_no_socket_another_kind_of_file_and_one_that_is_made_anew(tmp_path):
    path = str(tmp_path / "a.socket")
    with pytest.raises(Unknown, match=r"a\.socket: ENOENT"):
        listener(path)
    assert socket_file(path) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(Unknown, match="file: ECONNREFUSED"):
        listener(str(tmp_path / "file"))
    seen = set()
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
        seen.add(socket_file(path))
        os.unlink(path)
    assert len(seen) == 2
