"""The flight recorder's file: what is written is read, whatever becomes of its writer or its bytes."""

import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import BOOT_AT, HEAD_SIZE, End, Kind, request_hash
from fd_postproc.flight.reading import Event, MessageEntry
from tests.lib.children import in_a_child, python
from tests.lib.flights import Task, begun, kinds, numbered
from tests.lib.rows import each
from tests.lib.waiting import until


def test_what_is_written_is_read(folder):
    recorder = begun(size=1 << 16)
    assert [os.stat(path).st_mode & 0o777 for path in (recorder.path, folder)] == [0o400, 0o700]
    recorder.event(Kind.QUEUE_ERROR, 3, 5, -(1 << 63), text="x" * 100)
    recorder.began(2, "a", 70, 1.5)
    recorder.ended(2, "a", 12, End.RECOVERY)
    recorder.frame(bytes(range(200)), 2)
    recorder.end()
    flight = reading.read(recorder.path)
    assert (flight.side, flight.channel, flight.pid, flight.queue_id) == ("engine", "topk", os.getpid(), 7)
    assert (flight.overwritten, flight.torn, flight.damaged) == (0, 0, 0)
    error, seated, began, end, message, closed = flight.entries
    assert (error.kind, error.slot, error.numbers[:2]) == (Kind.QUEUE_ERROR, 3, (5, -(1 << 63)))
    assert error.text == "x" * 100
    assert seated.kind == Kind.SEATED
    assert began.numbers[:3] == (request_hash("a"), 70, 1_500_000)
    assert end.numbers[:3] == (request_hash("a"), 12, End.RECOVERY)
    assert isinstance(message, MessageEntry)
    assert (message.mtype, message.payload) == (2, bytes(range(200)))
    assert closed.kind == Kind.CLOSED
    assert sorted(entry.at for entry in flight.entries) == [entry.at for entry in flight.entries]


def test_the_newest_entries_stay(folder):
    recorder = begun()
    fit = ((1 << 14) - HEAD_SIZE) // 64
    for n in range(10 * fit + 7):
        recorder.event(Kind.STALE, -1, n)
        if n == fit + 3 or n == 10 * fit + 6:
            flight = reading.read(recorder.path)
            assert numbered(flight.entries) == list(range(n + 1 - fit, n + 1))
            assert (flight.overwritten, flight.torn, flight.damaged) == (n + 1 - fit, 0, 0)


def test_a_text_whose_beginning_is_overwritten_is_nobodys(folder):
    recorder = begun()
    fit = ((1 << 14) - HEAD_SIZE) // 64
    recorder.event(Kind.LOST, text="y" * 400)
    for n in range(fit - 4):
        recorder.event(Kind.STALE, -1, n)
    flight = reading.read(recorder.path)
    assert numbered(flight.entries) == list(range(fit - 4))
    assert not any(entry.text for entry in flight.entries)


def test_a_link_and_a_folder_that_others_may_write_to_are_not_used(folder, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert begun().ring is None
    assert os.listdir(tmp_path / "elsewhere") == []
    folder.unlink()
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    recorder = begun()
    assert recorder.ring is None
    assert "remove it" in caplog.text
    recorder.event(Kind.STALE)  # to nowhere
    recorder.look(0, 0, [], 0)
    recorder.end()


def test_no_room_on_the_disk_is_told_and_costs_no_more(folder, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert begun().ring is None
    assert "No space left" in caplog.text
    assert os.listdir(folder) == []


@each("setting, told", [("0", ""), ("much", "FD_POSTPROC_FLIGHT='much' is not a number of MiB")])
def test_off_or_a_wrong_setting(setting, told, folder, monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT", setting)
    assert begun().ring is None
    assert told in caplog.text
    assert not folder.exists()


WRITER = """
import logging, os, sys
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.recorder import Recorder
from tests.lib.rows import each
recorder = Recorder.begin("worker", "topk", 7, logging.getLogger(), size=1 << 18)
print(recorder.path, flush=True)
n = 0
while len(sys.argv) < 2:
    recorder.event(Kind.STALE, -1, n)
    n += 1
"""


def writing(*arguments):
    """A process that writes for ever, or ends in good order; the path of its file."""
    process = subprocess.Popen(python(WRITER, *arguments), stdout=subprocess.PIPE, text=True)
    with process.stdout:
        return process, process.stdout.readline().strip()


@pytest.mark.realtime
def test_a_writer_that_is_killed_leaves_a_file_of_whole_entries(folder):
    process, path = writing()
    try:
        until(lambda: reading.read(path).overwritten > 10_000)
        for _ in range(30):  # while it writes: what is not whole is not taken for whole
            flight = reading.read(path)
            assert flight.writer == process.pid
            found = numbered(flight.entries)
            assert found == sorted(set(found))
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    flight = reading.read(path)
    found = numbered(flight.entries)
    assert flight.writer is None
    assert found == list(range(found[0], found[0] + len(found)))
    assert len(found) >= flight.size // 64 - 1
    assert flight.torn <= 1
    assert flight.damaged == 0
    assert not any(isinstance(entry, Event) and entry.kind == Kind.CLOSED for entry in flight.entries)


def test_few_files_of_dead_processes_stay(folder):
    paths = []
    for n in range(files.KEPT + 3):
        process, path = writing("end")
        process.wait(20)
        os.utime(path, (-n, -n))  # as if the clock had been set back between any two
        paths.append(path)
    living, path = writing()
    try:
        begun()
        left = {os.path.join(folder, name) for name in os.listdir(folder)}
        assert path in left
        assert {*paths} & left == {*paths[-files.KEPT :]}
    finally:
        living.kill()
        living.wait()


def test_of_files_of_another_boot_the_wall_clock_tells_which_is_newer(folder):
    paths = []
    for n in range(3):
        recorder = begun()
        recorder.end()
        os.chmod(recorder.path, 0o600)
        with open(recorder.path, "r+b") as file:
            file.seek(BOOT_AT)
            file.write(bytes([9] * 16 if n else bytes(16)))  # another boot's; an older version's
        os.utime(recorder.path, (5 - n, 5 - n))
        paths.append(recorder.path)
    newest = begun()
    os.utime(newest.path, (0, 0))
    assert files.listed() == [newest.path, *paths]


@each("free, place", [(40, "shared"), (32, "shared"), (31, "temporary")])
def test_half_of_the_shared_memory_stays_free(monkeypatch, tmp_path, free, place):
    """Of 48 MiB; a file takes 8, and those of ended processes go first."""
    monkeypatch.delenv("FD_POSTPROC_FLIGHT_FOLDER", raising=False)
    tmp_path /= str(free)
    for name in ("shared", "temporary"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(files, "_SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cleaned = []
    monkeypatch.setattr(files, "_clean", lambda where, kept=files.KEPT: cleaned.append(kept))
    room = {files.KEPT: free - 8, 0: free}
    monkeypatch.setattr(
        os,
        "fstatvfs",
        lambda where: SimpleNamespace(f_bavail=room[cleaned[-1]], f_blocks=48, f_frsize=1 << 20),
    )
    made = files.make("engine", "plain", 48000, 1, 8 << 20)
    made.memory.close()
    os.close(made.descriptor)
    assert Path(made.path).parent.parent == tmp_path / place
    assert (0 in cleaned) == (free < 40)


def test_a_child_writes_nothing_into_its_parents_file(folder):
    recorder = begun()
    recorder.event(Kind.STALE, -1, 1)

    def child():
        recorder.event(Kind.STALE, -1, 2)
        recorder.frame(b"x", 1)
        recorder.rest()
        recorder.end()

    in_a_child(child)
    recorder.event(Kind.STALE, -1, 3)
    assert numbered(reading.read(recorder.path).entries) == [1, 3]


def test_threads_write_side_by_side(folder):
    recorder = begun(size=1 << 20)

    def write(first):
        for n in range(500):
            recorder.event(Kind.STALE, -1, first + n, text="abc")

    threads = [threading.Thread(target=write, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flight = reading.read(recorder.path)
    assert sorted(numbered(flight.entries)) == sorted(1000 * k + n for k in range(4) for n in range(500))
    assert all(entry.text == "abc" for entry in flight.entries)


def test_a_request_that_leaves_without_a_word_is_told(folder):
    recorder, a, b = begun(), request_hash("a"), request_hash("b")
    recorder.look(-1, 0, [Task("a"), None], 0)
    recorder.look(-1, 0, [Task("a"), Task("b")], 0)
    recorder.ended(1, "b", 5, End.TOKEN)
    recorder.look(-1, 0, [Task("b"), Task("b")], 0)  # its task is still there
    told = [("SEATED", 0, a), ("SEATED", 1, b), ("ENDED", 1, b), ("LEFT", 0, a), ("SEATED", 0, b)]
    assert kinds(recorder) == told

    recorder = begun()  # one that came back
    recorder.began(0, "a", 7, None)
    recorder.let_go(Kind.PREEMPTED, 0, "a")
    recorder.began(0, "a", 7, None)
    recorder.look(-1, 0, [None], 0)
    assert [kind for kind, _, _ in kinds(recorder)] == ["SEATED", "BEGAN", "PREEMPTED", "BEGAN", "LEFT"]
    assert kinds(recorder)[-1] == ("LEFT", 0, a)


def test_the_id_of_a_request_is_not_in_the_file(folder):
    recorder = begun()
    recorder.began(0, "somebody@example.org", 7, None)
    recorder.failed(0, "somebody@example.org", ValueError("somebody's text"))
    with open(recorder.path, "rb") as file:
        data = file.read()
    assert b"somebody" not in data
    assert b"ValueError" in data
