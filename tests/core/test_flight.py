"""The flight recorder's file: what is written is read, whatever becomes of its writer or bytes."""

import os
import random
import signal
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc._core import FlightRing
from fd_postproc.explain.timeline import with_slots
from fd_postproc.fastdeploy.engine.results._results import Stages
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import BOOT_AT, HEAD, HEAD_SIZE, MAGIC, VERSION, End, Kind, request_hash
from fd_postproc.flight.reading import Event, MessageEntry
from tests.lib.children import in_a_child, python
from tests.lib.flights import Task, begun, bytes_of, kinds, numbered
from tests.lib.kernel_emulation import compiler
from tests.lib.paths import ROOT
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


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A file's bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path_factory.mktemp("example")))
        recorder = begun(size=HEAD_SIZE + 64 * 64)
        for n in range(40):
            recorder.event(Kind.LOST, n, n, text="z" * n)
            recorder.look(-1, os.getpid(), [Task(f"r{n}")], 0)
            recorder.frame(b"q" * n, 1)
        with open(recorder.path, "rb") as file:
            return file.read()


def test_cut_anywhere(example):
    whole = reading.parse(example).entries
    for size in range(len(example)):
        if size < HEAD_SIZE:
            if size in (0, 7, 8, 100, HEAD_SIZE - 1):
                with pytest.raises(reading.FlightError):
                    reading.parse(example[:size])
        elif size % 32 < 2:
            assert len(reading.parse(example[:size]).entries) <= len(whole)


def test_a_changed_bit_costs_an_entry_and_no_more(example):
    sure = [entry for entry in reading.parse(example).entries if isinstance(entry, Event)]
    generator = random.Random(4)
    for _ in range(300):
        data = bytearray(example)
        at = generator.randrange(HEAD_SIZE, len(data))
        data[at] ^= 1 << generator.randrange(8)
        flight = reading.parse(bytes(data))
        assert flight.torn + flight.damaged == 1
        assert len([entry for entry in flight.entries if isinstance(entry, Event)]) >= len(sure) - 2


def test_an_entry_is_whole_in_its_own_place_only(folder):
    """Whoever copies entries about, repeats nothing."""
    recorder = begun()
    for n in range(10):
        recorder.event(Kind.STALE, -1, n)
    data, at = bytes_of(recorder)
    data[at(50) : at(51)] = data[at(4) : at(5)]
    flight = reading.parse(bytes(data))
    assert numbered(flight.entries) == list(range(10))
    assert (flight.torn, flight.damaged) == (0, 1)


def test_an_entry_of_an_earlier_lap_is_none(folder):
    recorder = begun()
    fit = ((1 << 14) - HEAD_SIZE) // 64
    recorder.event(Kind.STALE, -1, 1000)
    before, at = bytes_of(recorder)
    for n in range(2 * fit):
        recorder.event(Kind.STALE, -1, n)
    data, _ = bytes_of(recorder)
    data[at(1) : at(2)] = before[at(1) : at(2)]
    flight = reading.parse(bytes(data))
    assert numbered(flight.entries) == list(range(fit + 1, 2 * fit)) or 1000 not in numbered(flight.entries)
    assert flight.torn + flight.damaged == 1


def test_the_entry_that_was_being_written_is_torn_and_any_other_is_damaged(folder):
    """kill -9 between the head of an entry and its body: its check word is 0, as `fdb_put` leaves it."""
    recorder = begun()
    fit = ((1 << 14) - HEAD_SIZE) // 64
    for written in (5, fit + 5):
        for n in range(written):
            recorder.event(Kind.STALE, -1, n)
        data, at = bytes_of(recorder)
        newest = max(int.from_bytes(data[k : k + 8], "little") for k in range(HEAD_SIZE, len(data) - 63, 64))
        for number, seen in ((newest + 1, (1, 0)), (newest - 1, (0, 1)), (newest - 3, (0, 1))):
            torn = bytearray(data)
            torn[at(number) : at(number) + 8] = number.to_bytes(8, "little")
            torn[at(number) + 8 : at(number) + 12] = bytes(4)
            torn[at(number) + 12] = Kind.LOST
            flight = reading.parse(bytes(torn))
            assert (flight.torn, flight.damaged) == seen
            assert not any(entry.kind == Kind.LOST for entry in flight.entries)


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_a_writer_that_dies_in_an_entry_leaves_no_check_word(tmp_path):
    """Behind each of its words; in the place of one that was whole."""
    program = str(tmp_path / "torn")
    source = str(ROOT / "tests" / "lib" / "flight_torn.c")
    subprocess.run([*compiler(), "-O2", f"-I{ROOT}", source, "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"{words} 0" for words in range(2, 8)]


def test_a_text_is_never_given_to_another_entry(folder):
    recorder = begun()
    recorder.event(Kind.LOST, -1, text="of the first")
    recorder.event(Kind.UNDELIVERED, -1, text="of the second")
    data, at = bytes_of(recorder)
    data[at(3)] ^= 1  # the second entry itself
    (found,) = reading.parse(bytes(data)).entries
    assert (found.kind, found.text) == (Kind.LOST, "of the first")


def test_a_message_that_is_not_all_there_is_none(folder):
    recorder = begun()
    recorder.frame(bytes(range(100)), 1)  # the entry that says so, and three of bytes
    recorder.event(Kind.STALE, -1, 7)
    data, at = bytes_of(recorder)
    for number in (2, 3, 4):
        broken = bytearray(data)
        broken[at(number) + 30] ^= 1
        assert not any(isinstance(entry, MessageEntry) for entry in reading.parse(bytes(broken)).entries)
    recorder.ring.event(Kind.FRAME, -1, 1, 3)  # says three bytes
    recorder.ring.event(Kind.STALE)
    recorder.frame(b"", 1)
    assert [
        len(one.payload) for one in reading.read(recorder.path).entries if isinstance(one, MessageEntry)
    ] == [100]


def test_what_a_file_says_is_harmless_on_a_terminal(folder):
    recorder = begun()
    recorder.event(Kind.LOST, -1, text="\x1b[2J\r\nclean\x07\u202e")
    (found,) = reading.read(recorder.path).entries
    assert found.text == "?[2J??clean??"


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


@given(st.binary(max_size=2000), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_anybodys_bytes(data, entries, busy):
    fields = entries, 1, -1, 2**63 - 1, -5, -7, b"\xff" * 16, data[:32]
    head = bytearray(HEAD.pack(MAGIC, VERSION, 64, *fields))
    head += b"\xff" * (256 - len(head)) + struct.pack("<QQ", 2**64 - 1, busy)
    reading.parse(bytes(head.ljust(HEAD_SIZE, b"\xee")) + data)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 255), st.integers(0, 255), st.binary(max_size=64)))
)
def test_entries_that_are_whole_and_mean_nothing(written):
    """Whoever writes such a file can make check words, too."""
    n, words = 64, np.zeros((64, 8), "<u8")
    for number, kind, flags, body in written:
        entry = struct.pack("<QIBBHq", number, 0, kind, flags, 0xFFFF, -(1 << 63)) + body[:40].ljust(
            40, b"\xff"
        )
        words[number % n] = np.frombuffer(entry, "<u8")
    words[:, 1] |= reading._checks(words)
    head = HEAD.pack(MAGIC, VERSION, 64, n, 1, 0, 0, 0, 0, b"plain\0engine", b"1")
    reading.parse(head.ljust(HEAD_SIZE, b"\0") + words.tobytes())


@each("kind", ["folder", "pipe", "text", "nothing", "newer"])
def test_what_is_no_such_file(tmp_path, kind):
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "text":
        path.write_text("a text\n" * 1000)
    elif kind == "newer":
        head = HEAD.pack(MAGIC, VERSION + 1, 64, 1, 1, 0, 0, 0, 0, b"", b"")
        path.write_bytes(head.ljust(HEAD_SIZE, b"\0"))
    with pytest.raises((reading.FlightError, OSError), match=str(path)):
        reading.read(str(path))
    for length in len(MAGIC), HEAD_SIZE - 1:
        with pytest.raises(reading.FlightError, match=f"ends within its head, at byte {length} of"):
            reading.parse(MAGIC + bytes(length - len(MAGIC)))


def test_a_ring_needs_room():
    with pytest.raises(ValueError, match="at least"):
        FlightRing(bytearray(100))
    with pytest.raises((TypeError, BufferError)):
        FlightRing(bytes(1 << 14))


def recorded_steps(recorder, *steps):
    """What the file says of them, each with the slots that had tokens."""
    stages = Stages()
    stages.ring = recorder.ring
    for step in steps:
        stages.end_receive()
        stages.end_build(None)
        stages.end_put([None] * 3, step)
    return list(with_slots(reading.read(recorder.path)))


@each("batch", [1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 319, 320, 321, 512])
def test_slots_with_tokens_whatever_the_batch(folder, batch):
    generator = random.Random(batch)
    steps, slots = [], []
    for _ in range(20):
        counts = [generator.choice([1, 1, -9]) for _ in range(batch)]
        live = {slot for slot, count in enumerate(counts) if count > 0}
        steps.append(fp.Step.from_arrays("plain", counts, range(len(live))))
        slots.append(live)
    found = recorded_steps(begun(size=1 << 16), *steps)
    assert [live for _, live in found] == slots
    assert [(step.live, step.batch, step.rows) for step, _ in found] == [
        (len(live), batch, len(live)) for live in slots
    ]
    assert all(step.results == 3 and step.receive >= 0 for step, _ in found)


def test_slots_of_a_step_that_has_fewer(folder):
    """What the greater one had beyond is gone, although nothing else has changed."""
    live = {100: {3, 80}, 50: {3}, 65: {3}, 320: {3, 319}}
    batches = [100, 50, 100, 65, 320, 50, 100]
    steps = [
        fp.Step.from_arrays(
            "plain", [1 if slot in live[batch] else -1 for slot in range(batch)], [*live[batch]]
        )
        for batch in batches
    ]
    found = recorded_steps(begun(size=1 << 16), *steps)
    assert [slots for _, slots in found] == [live[batch] for batch in batches]


def test_slots_that_stay_are_told_again_after_a_thousand_steps(folder):
    """So that the ring always has them; and no more often, which would fill it."""
    recorder, step = begun(size=1 << 18), fp.Step.from_arrays("plain", [1, -1, 1], [7, 8])
    found = recorded_steps(recorder, *[step] * 2500)
    data, at = bytes_of(recorder)
    told = [number for number in range(1, 2500 + 10) if data[at(number) + 12] == Kind.LIVE]
    assert told == [1, 1 + 1025, 1 + 2 * 1025]
    assert all(slots == {0, 2} for _, slots in found)


@each("columns", [2, 21])
@each("rows", [20, 64, 300])
def test_the_sum_is_of_the_sampled_tokens_alone(folder, columns, rows):
    """Column 0; the others are candidates."""
    ids = np.arange(rows * columns).reshape(rows, columns)
    zeros = np.zeros((rows, columns), np.float32)
    steps = []
    for at in [None, *range(columns)]:
        changed = ids.copy()
        if at is not None:
            changed[0, at] += 1
        ranks = np.ones(rows, np.int64)
        steps.append(fp.Step.from_arrays("topk", [1] * rows, changed, zeros, ranks))
    first, sampled, *others = [step.sum for step, _ in recorded_steps(begun(size=1 << 16), *steps)]
    assert first != sampled
    assert set(others) == {first}


@each("batch", [1, 16, 31, 32, 33, 64, 100, 128])
def test_the_sum_is_of_every_count_and_token(folder, batch):
    """Equal steps have equal ones, and no two others."""
    counts = [2] * batch
    ids = np.arange(2 * batch)
    others = [fp.Step.from_arrays("spec", counts, ids), fp.Step.from_arrays("spec", counts, ids)]
    for at in range(batch):
        fewer = [*counts[:at], 1, *counts[at + 1 :]]
        others.append(fp.Step.from_arrays("spec", fewer, ids[: sum(fewer)]))
    if 2 * batch <= 128:
        for at in range(2 * batch):
            changed = ids.copy()
            changed[at] += 1
            others.append(fp.Step.from_arrays("spec", counts, changed))
    sums = [step.sum for step, _ in recorded_steps(begun(size=1 << 16), *others)]
    assert sums[0] == sums[1]
    assert len(set(sums)) == len(sums) - 1


def test_of_many_tokens_some_are_summed_over_all_of_the_step(folder):
    counts, ids = [6] * 256, np.arange(6 * 256)
    steps = [fp.Step.from_arrays("spec", counts, ids)]
    for at in range(6 * 256):
        changed = ids.copy()
        changed[at] += 1
        steps.append(fp.Step.from_arrays("spec", counts, changed))
    first, *sums = [step.sum for step, _ in recorded_steps(begun(size=1 << 18), *steps)]
    told = [at for at, one in enumerate(sums) if one != first]
    assert told == list(range(0, 6 * 256, 12))


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
def test_sums_and_slots_are_the_same_without_vector_instructions(tmp_path):
    printed = []
    for n, flags in enumerate(([], ["-U__SSE2__"])):
        program = str(tmp_path / f"sums-{n}")
        source = str(ROOT / "tests" / "lib" / "flight_sums.c")
        subprocess.run([*compiler(), "-O2", *flags, f"-I{ROOT}", source, "-o", program], check=True)
        printed.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert printed[0] == printed[1]
    lines = [line.split() for line in printed[0].splitlines()]
    assert [line[3:] for line in lines] == [["0", "0"]] * 1101
    assert len({line[1] for line in lines}) == 1101


def test_a_step_says_when_it_was_received_and_is_in_hand_from_then_on(folder, queue, plain_sender):
    """Three stages, and nobody but the Receiver looks at the clock when the first is over."""
    recorder, stages, receiver = begun(size=1 << 16), Stages(), fp.Receiver("plain", key=queue.key)
    receiver._follows_sender, receiver._ring, stages.ring = True, recorder.ring, recorder.ring
    kept = []
    receiver._keeper = kept.append
    stages.begin()
    time.sleep(0.02)
    plain_sender.send(fp.Step.from_arrays("plain", [1], [7]))
    step = receiver.receive()
    assert kept == [step]
    busy = reading.read(recorder.path).busy_since
    time.sleep(0.04)
    assert time.monotonic() - 10 < busy <= time.monotonic() - 0.04
    stages.end_build(step)
    time.sleep(0.06)
    stages.end_put([None, None], step)
    flight = reading.read(recorder.path)
    assert flight.busy_since is None
    (found,) = [one for one, _ in with_slots(flight)]
    for seconds, told, least in (
        (stages.receive_seconds, found.receive, 0.02),
        (stages.build_seconds, found.build, 0.04),
        (stages.put_seconds, found.put, 0.06),
    ):
        assert least - 1e-3 <= seconds
        assert told == pytest.approx(seconds, rel=1e-6)
    assert stages.receive_seconds < 10
    assert (stages.steps, stages.results, found.results) == (1, 2, 2)
    seconds = stages.receive_seconds
    stages.end_build(step)  # again: it was received long ago
    assert stages.receive_seconds == seconds


def test_a_receiver_in_a_child_marks_nothing_in_its_parents_file(folder, queue, plain_sender):
    recorder, receiver = begun(), fp.Receiver("plain", key=queue.key)
    receiver._follows_sender, receiver._ring = True, recorder.ring
    plain_sender.send(fp.Step.from_arrays("plain", [1], [7]))
    in_a_child(receiver.receive)
    assert reading.read(recorder.path).busy_since is None
