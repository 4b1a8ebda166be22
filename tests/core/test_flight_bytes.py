"""A flight recorder's file whose bytes are anybody's: cut, changed, torn, made up."""

import os
import random
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc._core import FlightRing
from fd_postproc.flight import reading
from fd_postproc.flight.codes import HEAD, HEAD_SIZE, MAGIC, VERSION, Kind
from fd_postproc.flight.reading import Event, MessageEntry
from tests.lib.flights import Task, begun, bytes_of, numbered
from tests.lib.kernel_emulation import compiler
from tests.lib.paths import ROOT
from tests.lib.rows import each


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
