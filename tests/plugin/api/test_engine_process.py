"""Which process the engine is, and whether it lives: real processes that listen, stop and die."""

import dataclasses
import itertools
import os
import re
import signal
import socket
import subprocess

import pytest

from fd_postproc.fastdeploy.api import engine_process
from fd_postproc.fastdeploy.api.engine_process import REFUSED, NoEngine, listener, socket_file
from fd_postproc.support import process_stat
from fd_postproc.support.process_stat import KnownProcess, listens
from tests.lib.children import python
from tests.lib.restores import restores
from tests.lib.rows import each
from tests.lib.waiting import until

pytest.importorskip("zmq")


def test_the_process_that_listens_is_known_until_it_is_killed(start_engine, tmp_path):
    """Stopped it lives; killed it is gone before its parent has noticed."""
    process = start_engine(path := str(tmp_path / "engine.socket"))
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
    with pytest.raises(NoEngine, match=r"engine\.socket: ECONNREFUSED"):
        listener(path)


def test_a_child_that_holds_the_socket_is_not_the_engine(start_engine, tmp_path):
    """FastDeploy's API processes are forked from the engine: its socket outlives it there."""
    process = start_engine(path := str(tmp_path / "engine.socket"), "fork")
    assert listener(path).pid == process.pid
    process.kill()
    process.wait()
    with pytest.raises(NoEngine, match=f"process {process.pid}, which made .* (has ended|cannot be seen)"):
        listener(path)


FORKED = """
import os, sys, time, zmq
from fd_postproc.fastdeploy.api import engine_process
socket = zmq.Context().socket(zmq.PULL)
socket.bind("ipc://" + sys.argv[1])
engine = os.getpid()
if os.fork():
    time.sleep(600)
engine_process.peer_of = lambda path: os.getpid()
found = engine_process.listener(sys.argv[1])
alive = found.is_alive(), engine_process.listener(sys.argv[1]) == found
print(found.pid == engine, alive, engine, flush=True)
while found.is_alive():
    time.sleep(0.01)
print("gone", type(engine_process.listener(sys.argv[1])).__name__)
"""


def test_where_the_kernel_names_who_asks_a_forked_process_goes_by_its_parent(tmp_path):
    """gVisor before June 2026; the child has the socket, too, so that it takes connections for ever."""
    with subprocess.Popen(
        python(FORKED, tmp_path / "engine.socket"), stdout=subprocess.PIPE, text=True
    ) as engine:
        try:
            found, alive, again, pid = re.fullmatch(
                r"(\w+) \((\w+), (\w+)\) (\d+)\n", engine.stdout.readline()
            ).groups()
            assert (found, alive, again) == ("True", "True", "True")
            os.kill(int(pid), signal.SIGKILL)
            assert engine.stdout.readline() == "gone Unnumbered\n"
        finally:
            engine.kill()


def test_where_the_kernel_names_who_asks_any_other_goes_by_the_socket(
    start_engine, tmp_path, monkeypatch, caplog
):
    process = start_engine(path := str(tmp_path / "engine.socket"))
    monkeypatch.setattr(engine_process, "peer_of", lambda path: os.getpid())
    engine = listener(path)
    assert f"this process listens at {path}" in caplog.text
    process.send_signal(signal.SIGSTOP)
    assert [engine.is_alive() for _ in range(300)] == [True] * 300  # more than wait to be accepted
    process.kill()
    process.wait()
    assert [engine.is_alive() for _ in range(REFUSED)] == [True] * (REFUSED - 1) + [False]
    start_engine(path)
    assert engine.is_alive()


def fields(state, threads=1, start=77):
    return [state, *"1" * 16, str(threads), "0", str(start)]


@each(
    "told, start, alive",
    [
        (fields("S"), 77, True),
        (fields("S"), 1, False),  # another process of the same number
        (PermissionError(), 77, True),  # what cannot be read lives
        (OSError(24, "too many open files"), 77, True),
        (fields("Z"), 77, False),
        (fields("Z", threads=2), 77, True),  # its first thread has ended
        (fields("X"), 77, False),
    ],
)
def test_what_the_kernel_says_of_a_process(monkeypatch, told, start, alive):
    def process_stat_of(pid):
        if isinstance(told, Exception):
            raise told
        return fields("R", start=5) if pid == "self" else told

    monkeypatch.setattr(process_stat, "process_stat", process_stat_of)
    assert KnownProcess(1, start, observer=5).is_alive() is alive


def test_a_restored_process_is_alive_until_it_ends(start_engine, tmp_path, monkeypatch):
    """A number that is used again goes on being noticed, before a restore and after it."""
    restore = restores(monkeypatch)
    process = start_engine(path := str(tmp_path / "engine.socket"))
    engine = listener(path)
    for later in (1, 1000, -500):
        restore(later)
        assert engine.is_alive()
        assert engine == listener(path)
        assert not dataclasses.replace(engine, start=engine.start - 1).is_alive()
    process.kill()
    restore()
    until(lambda: not engine.is_alive())
    process.wait()
    assert not engine.is_alive()


@each("look", range(4))
def test_a_restore_between_two_looks_at_proc_ends_nothing(look, monkeypatch):
    """Before each of the looks of `is_alive`, and after them."""
    restore, engine = restores(monkeypatch), KnownProcess.of(os.getppid())
    stock, looks = process_stat.process_stat, itertools.count()

    def process_stat_of(pid):
        if next(looks) == look:
            restore()
        return stock(pid)

    monkeypatch.setattr(process_stat, "process_stat", process_stat_of)
    assert [engine.is_alive() for _ in range(3)] == [True] * 3


def test_no_socket_another_kind_of_file_and_one_that_is_made_anew(tmp_path):
    path = str(tmp_path / "a.socket")
    with pytest.raises(NoEngine, match=r"a\.socket: ENOENT"):
        listener(path)
    assert socket_file(path) is None
    assert not listens(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NoEngine, match="file: ECONNREFUSED"):
        listener(str(tmp_path / "file"))
    seen = set()
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
        seen.add(socket_file(path))
        os.unlink(path)
    assert len(seen) == 2
