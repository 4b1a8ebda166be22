"""The flight recorder's files: where they are made, which stay, and whose they are."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fd_postproc.cli.streams import open_input
from fd_postproc.doctor import check_environment
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import BOOT_AT, Kind
from fd_postproc.flight.recorder import Recorder
from tests.lib.children import ended, forked, in_a_child, python
from tests.lib.flights import LOG, begun, file_of, is_made, numbered
from tests.lib.rows import each
from tests.lib.waiting import until


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
    recorder = begun()
    assert recorder.ring is None
    recorder.event(Kind.STALE)  # to nowhere
    recorder.look(0, 0, [], 0)
    assert told in caplog.text
    assert not folder.exists()


def test_two_recorders_never_share_a_file(folder):
    """Another processor of this process; and a process that had this one's number."""
    folder.mkdir(mode=0o700)
    earlier = folder / f"engine-7-{os.getpid()}.flight"
    earlier.write_bytes(b"of an earlier process")
    one, two = begun(), begun()
    one.event(Kind.STALE, -1, 1)
    two.event(Kind.STALE, -1, 2)
    assert [numbered(reading.read(it.path).entries) for it in (one, two)] == [[1], [2]]
    assert earlier.read_bytes() == b"of an earlier process"


def test_the_first_and_the_newest_of_a_series_of_dead_processes_stay(folder):
    paths = []
    for n in range(files.KEPT + 3):
        child = forked(lambda: begun().end())
        assert ended(child) == 0
        paths.append(file_of(folder, child))
        os.utime(paths[-1], (-n, -n))  # as if the clock had been set back between any two
    living = forked(lambda: (begun(), signal.pause()))
    try:
        until(lambda: is_made(file_of(folder, living)))
        begun()
        left = {os.path.join(folder, name) for name in os.listdir(folder)}
        assert file_of(folder, living) in left
        assert {*paths} & left == {paths[0], *paths[1 - files.KEPT :]}
    finally:
        os.kill(living, signal.SIGKILL)
        ended(living)


def numbers_of_runs():
    return sorted(n for path in files.listed() for n in numbered(reading.read(path).entries))


def run(number, **options):
    """A process's recorder, which ends with it, or stays where its number is not seen any more."""
    recorder = begun(**options)
    assert recorder.ring is not None
    recorder.event(Kind.STALE, -1, number)
    return recorder


def test_restarts_with_one_process_number(folder):
    """A container has the same numbers at each start; what this process has open is not touched."""
    living = run(1000)
    for n in range(101):
        run(n).end()
        living.event(Kind.STALE, -1, 1001 + n)
    in_a_child(lambda: run(101).end())  # another process sees the lock
    assert numbers_of_runs() == [0, 98, 99, 100, 101, *range(1000, 1102)]


HOUR = files.SERIES_NS


@each(
    "began, first",
    [
        ([0, 1], 0),  # hours of their beginnings; the fifth begins an hour behind the last
        ([0, 5, 5.1, 5.2, 5.3], 0),
        ([0, 5, 5.1, 7], 3),
        ([0, 0.5, 1, 1.5, 2, 2.5], 0),
    ],
)
def test_the_first_of_the_last_series(began, first):
    runs = [files.Run(True, int(hours * HOUR), str(n)) for n, hours in enumerate(began)]
    now = int((began[-1] + (2 if began[-1] == 7 else 0.5)) * HOUR)
    newest = [run for run in reversed(runs) if run is not runs[first]]
    assert files._by_worth(runs, now) == [runs[first], *newest]


def test_a_side_and_a_queue_have_their_own(folder, monkeypatch):
    for n in range(6):
        for side, queue_id in ("engine", 7), ("worker", 7), ("engine", 8):
            recorder = Recorder.begin(side, "topk", queue_id, LOG, size=1 << 14)
            recorder.event(Kind.STALE, -1, n)
            recorder.end()
    run(6).end()
    assert numbers_of_runs() == sorted([0, 3, 4, 5, 6] + 2 * [0, 3, 4, 5])
    monkeypatch.setattr(files, "KEPT_IN_ALL", 3)
    begun()
    assert numbers_of_runs() == [0, 0, 0]


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


@each(
    "others, left, place",
    [
        (4, [0, 2, 3, 4], "shared"),
        (9, [0, 4], "shared"),
        (10, [0], "shared"),
        (11, [], "shared"),
        (12, [], "temporary"),
    ],
)
def test_half_of_the_shared_memory_stays_free(monkeypatch, tmp_path, others, left, place):
    """Of 24 files; those of ended processes go first, as few as possible, the first of the series last."""
    monkeypatch.delenv("FD_POSTPROC_FLIGHT_FOLDER", raising=False)
    tmp_path /= str(others)
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    for place_ in (shared, temporary):
        place_.mkdir(parents=True)
    monkeypatch.setattr(files, "_SHARED", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    taken = []

    def room(where):
        return SimpleNamespace(
            f_bavail=24 - sum(taken) - len(os.listdir(where)), f_blocks=24, f_frsize=1 << 14
        )

    monkeypatch.setattr(os, "fstatvfs", room)
    for n in range(5):
        run(n).end()
    taken.append(others)
    run(5).end()
    assert numbers_of_runs() == sorted({*left, 5})
    assert (Path(files.listed()[0]).parent.parent.name, len(os.listdir(temporary))) == (
        place, int(place == "temporary")
    )  # fmt: skip


def test_a_folder_that_was_named_is_used_though_it_is_in_shared_memory(folder, monkeypatch):
    monkeypatch.setattr(files, "_SHARED", str(folder.parent))
    monkeypatch.setattr(
        os, "fstatvfs", lambda where: SimpleNamespace(f_bavail=9, f_blocks=24, f_frsize=1 << 14)
    )
    run(0).end()
    assert numbers_of_runs() == [0]


def test_shared_memory_is_enough(monkeypatch, tmp_path):
    """Under a root that is read-only, without a temporary folder."""
    monkeypatch.delenv("FD_POSTPROC_FLIGHT_FOLDER", raising=False)
    monkeypatch.setattr(files, "_SHARED", str(tmp_path))
    room = SimpleNamespace(f_bavail=24, f_blocks=24, f_frsize=1 << 14)
    monkeypatch.setattr(os, "fstatvfs", lambda where: room)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    run(5).end()
    assert numbers_of_runs() == [5]
    assert files.folders() == [str(tmp_path / f"fd_postproc-{os.geteuid()}")]
    assert files.other_users() == []
    (found,) = check_environment()
    assert (found.code, found.severity) == ("no-temporary-folder", "warning")
    assert "TMPDIR=/dev/shm" in found.remedy[0]
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b"not a flight")
    os.close(writing_end)
    with open_input(f"/dev/fd/{reading_end}") as spool:
        assert spool.read() == b"not a flight"
    os.close(reading_end)


CONTAINER = 'mount -t tmpfs -o size=64m none /dev/shm && "$@" && ls /dev/shm/*'
SERVICE = """
import ctypes, logging, os, sys
from fd_postproc.flight.recorder import Recorder
CLONE_NEWPID = 0x20000000
for _ in range(12):
    if os.fork() == 0:
        assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
        if os.fork() == 0:
            begun = [("engine", "topk", 7, logging.getLogger()), ("worker", "topk", 7, logging.getLogger())]
            sides = [Recorder.begin(*arguments, size=8 << 20) for arguments in begun]
            print(os.getpid(), flush=True)
            sys.exit(not all(one.path and one.path.startswith("/dev/shm") for one in sides))
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    assert os.wait()[1] == 0
"""


def test_a_container_that_starts_twelve_times(monkeypatch):
    """Two files of 8 MiB each time, in the 64 MiB of shared memory that a container has."""
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("namespaces of its own are not permitted here")
    monkeypatch.delenv("FD_POSTPROC_FLIGHT_FOLDER", raising=False)
    command = [*private, "sh", "-c", CONTAINER, "sh", *python(SERVICE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:12] == ["1"] * 12
    left = [line for line in done.stdout.splitlines()[12:] if line.endswith(".flight")]
    assert [name.partition("-")[0] for name in left] == ["engine"] * 2 + ["worker"] * 2
