"""What a flight recorder writes is read, whatever becomes of its writer or of the file's bytes."""

import ctypes
import faulthandler
import itertools
import mmap
import os
import random
import signal
import struct
import threading

import pytest

from fd_postproc._core import FlightRing
from fd_postproc.flight import reading
from fd_postproc.flight.codes import HEAD, HEAD_SIZE, MAGIC, VERSION, End, Kind, request_hash
from fd_postproc.flight.reading import Event, MessageEntry
from tests.lib.children import ended, forked, in_a_child
from tests.lib.flights import Task, begun, bytes_of, file_of, is_made, kinds, numbered
from tests.lib.rows import each
from tests.lib.waiting import until

FIT = ((1 << 14) - HEAD_SIZE) // 64  # entries of the smallest file


def write_numbers(recorder, count):
    for n in range(count):
        recorder.event(Kind.STALE, -1, n)


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
    for n in range(10 * FIT + 7):
        recorder.event(Kind.STALE, -1, n)
        if n == FIT + 3 or n == 10 * FIT + 6:
            flight = reading.read(recorder.path)
            assert numbered(flight.entries) == list(range(n + 1 - FIT, n + 1))
            assert (flight.overwritten, flight.torn, flight.damaged) == (n + 1 - FIT, 0, 0)


def test_a_text_whose_beginning_is_overwritten_is_nobodys(folder):
    recorder = begun()
    recorder.event(Kind.LOST, text="y" * 400)
    write_numbers(recorder, FIT - 4)
    flight = reading.read(recorder.path)
    assert numbered(flight.entries) == list(range(FIT - 4))
    assert not any(entry.text for entry in flight.entries)


@pytest.mark.realtime
def test_a_writer_that_is_killed_leaves_a_file_of_whole_entries(folder):
    def write():
        recorder, number = begun(size=1 << 16), itertools.count()
        while True:
            recorder.event(Kind.STALE, -1, next(number))

    child = forked(write)
    path = file_of(folder, child)
    try:
        until(lambda: is_made(path) and reading.read(path).overwritten > 1_200)
        for _ in range(10):  # while it writes: what is not whole is not taken for whole
            flight = reading.read(path)
            assert flight.writer == child
            found = numbered(flight.entries)
            assert found == sorted(set(found))
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
    flight = reading.read(path)
    found = numbered(flight.entries)
    assert flight.writer is None
    assert found == list(range(found[0], found[0] + len(found)))
    assert len(found) >= flight.size // 64 - 1
    assert (flight.torn <= 1, flight.damaged) == (True, 0)
    assert not any(isinstance(entry, Event) and entry.kind == Kind.CLOSED for entry in flight.entries)


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

    recorder = begun()  # one that the worker let go
    recorder.began(0, "a", 7, None)
    recorder.let_go(Kind.PREEMPTED, 0, "a")
    recorder.look(-1, 0, [None], 0)
    assert [kind for kind, _, _ in kinds(recorder)] == ["SEATED", "BEGAN", "PREEMPTED"]

    recorder = begun()  # and that came back
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
            recorder.event(Kind.LOST, n, n, text="z" * 2 * n)
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
    entries = reading.parse(example).entries
    sure = [entry for entry in entries if isinstance(entry, Event)]
    texts = [one.text for one in sure if one.text]
    most = len(texts) + len([one for one in entries if isinstance(one, MessageEntry)])
    generator = random.Random(4)
    for _ in range(300):
        data = bytearray(example)
        at = generator.randrange(HEAD_SIZE, len(data))
        data[at] ^= 1 << generator.randrange(8)
        flight = reading.parse(bytes(data))
        assert flight.torn + flight.damaged == 1
        events = [entry for entry in flight.entries if isinstance(entry, Event)]
        assert len(events) >= len(sure) - 2
        found = [one.text for one in events if one.text]
        assert {*found} <= {*texts}
        messages = [one for one in flight.entries if isinstance(one, MessageEntry)]
        assert len(found) + len(messages) >= most - 1


def test_an_entry_is_whole_in_its_own_place_and_lap_only(folder):
    """Whoever copies entries about, repeats nothing."""
    recorder = begun()
    write_numbers(recorder, 10)
    before, at = bytes_of(recorder)
    copied = before[at(4) : at(5)]
    moved = bytearray(before)
    moved[at(50) : at(51)] = copied
    flight = reading.parse(bytes(moved))
    assert numbered(flight.entries) == list(range(10))
    assert (flight.torn, flight.damaged) == (0, 1)
    write_numbers(recorder, 2 * FIT)
    data, _ = bytes_of(recorder)
    data[at(4) : at(5)] = copied
    flight = reading.parse(bytes(data))
    assert len(numbered(flight.entries)) == FIT - 1
    assert flight.torn + flight.damaged == 1


def test_the_entry_that_was_being_written_is_torn_and_any_other_is_damaged(folder):
    """kill -9 between the head of an entry and its body: its check word is 0, as `fdb_put` leaves it."""
    recorder = begun()
    for written in (5, FIT + 5):
        write_numbers(recorder, written)
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


@each("words", range(2, 8))
def test_a_writer_that_dies_in_an_entry_leaves_no_check_word(words):
    """Behind each of its words: the page with the others cannot be written to.  A whole one lay there."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 4 * page) as memory:
        first = 2 * page - 8 * words  # the place of entry 1, and of the 65th

        def write():
            faulthandler.disable()
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # meant: a sanitizer would write a report of it
            ring = FlightRing(memoryview(memory)[first - 64 - HEAD_SIZE : first + 63 * 64])
            for _ in range(64):
                ring.event(Kind.STALE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 2 * page
            ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), mmap.PROT_READ)
            ring.event(Kind.STALE)

        assert ended(forked(write)) == -signal.SIGSEGV
        number, check = struct.unpack_from("<QI", memory, first)
        assert number in (1, 65)  # the compiler orders what is behind the fence
        assert check == 0


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
