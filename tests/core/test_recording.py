"""The file format of recordings."""

import os
import random
import resource
import stat
import struct
import tracemalloc
import zlib
from itertools import pairwise

import pytest

import fd_postproc as fp
from fd_postproc.recording import MAX_PAYLOAD, Recording, RecordingError, RecordingWriter, is_recording
from tests import reference
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.reference import ReferenceStep

HEADER, RECORD = 40, 28
MESSAGES = [(b"", 1, 5), (b"abc" * 400, 1, 6), (random.Random(7).randbytes(300), (3 << 32) + 1, 1 << 62)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.fdrec"


@pytest.fixture
def written(path):
    with RecordingWriter(path, "spec_topk", layout=fp.Layout(128, 5, 6)) as recording:
        for message in MESSAGES:
            recording.write(*message)
    return path


def contents(path):
    with Recording(path) as recording:
        found = [(message.payload, message.mtype, message.time_ns) for message in recording]
        return found, recording.cut


def test_what_was_written_is_read(written):
    assert contents(written) == (MESSAGES, None)
    with Recording(written) as recording:
        assert (recording.channel, recording.layout) == ("spec_topk", fp.Layout(128, 5, 6))
        assert list(recording) == list(recording)
        survey = recording.survey()
    assert (survey.messages, survey.payload_bytes, survey.longest) == (3, 1500, 1200)
    assert (survey.first_ns, survey.last_ns, survey.cut) == (5, 1 << 62, None)
    assert survey.file_bytes == written.stat().st_size
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    before = written.read_bytes()
    with pytest.raises(FileExistsError):
        RecordingWriter(written)
    assert written.read_bytes() == before


def test_iterations_do_not_disturb_each_other(written):
    with Recording(written) as recording:
        indexes = [message.index for message in recording if recording.survey().messages == 3]
        assert indexes == [head.index for head in recording.heads() if list(recording)] == [0, 1, 2]
        both = iter(recording), recording.heads()
        assert [next(one).index for one in both] == [0, 0]
    for one in both:
        with pytest.raises(ValueError, match=str(written)):
            next(one)


def test_an_empty_one_and_a_long_payload(path):
    RecordingWriter(path, force=True).close()  # which needs no file that is there
    with Recording(path) as recording:
        assert (recording.channel, list(recording), recording.survey().messages) == (None, [], 0)
    payload = random.Random(1).randbytes(3 << 20)
    with RecordingWriter(path, force=True) as recording:
        recording.write(payload)
    assert contents(path)[0][0][0] == payload
    with RecordingWriter(path, force=True) as recording:
        with pytest.raises(ValueError, match=f"at most {MAX_PAYLOAD}"):
            recording.write(bytes(MAX_PAYLOAD + 1))
        assert recording.messages == 0


def test_times_rise_though_the_clock_is_set(path, monkeypatch):
    """A replay sleeps for what lies between them."""
    with RecordingWriter(path) as recording:
        for wall in 0, 1 << 60, 5:
            monkeypatch.setattr("time.time_ns", lambda wall=wall: wall)
            recording.write(b"message")
    times = [time_ns for _, _, time_ns in contents(path)[0]]
    assert all(0 <= later - earlier < 1e10 for earlier, later in pairwise(times))


def test_force_makes_a_new_file_that_old_readers_do_not_see(written):
    written.chmod(0o644)
    with open(written, "rb") as old:
        with RecordingWriter(written, force=True) as recording:
            recording.write(b"secret")
        assert old.read() != written.read_bytes()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert contents(written)[0][0][0] == b"secret"


def test_force_leaves_anything_but_regular_files_alone(tmp_path, written):
    link = tmp_path / "link"
    link.symlink_to(written)
    os.mkfifo(tmp_path / "pipe")
    for path in link, tmp_path / "pipe", tmp_path:
        with pytest.raises(FileExistsError, match="not a regular file"):
            RecordingWriter(path, force=True)
    with pytest.raises(OSError, match="descriptor 12345"):
        RecordingWriter(12345)
    assert contents(written)[0] == MESSAGES


def test_every_cut_yields_all_complete_messages(written, tmp_path):
    whole = written.read_bytes()
    ends = [HEADER]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + RECORD + struct.unpack_from("<I", whole, ends[-1])[0])
    short = tmp_path / "short"
    for size in range(len(whole)):
        short.write_bytes(whole[:size])
        if size < HEADER:
            with pytest.raises(RecordingError):
                Recording(short)
            continue
        complete = sum(end <= size for end in ends[1:])
        found, cut = contents(short)
        assert found == MESSAGES[:complete]
        assert (cut is None) == (size in ends)
        with Recording(short) as recording:
            survey = recording.survey()
        assert (survey.messages, survey.cut) == (complete, cut)
        if cut:
            assert f"message {complete} " in cut


def test_every_damaged_byte_is_noticed(written, tmp_path):
    whole = written.read_bytes()
    bad = tmp_path / "bad"
    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 0x41
        bad.write_bytes(damaged)
        try:
            found, cut = contents(bad)
        except RecordingError:
            continue
        # A length that grew beyond the file reads like a file that was cut short.
        assert cut is not None
        assert found == MESSAGES[: len(found)]


def forged(path, size, stored, stored_size=None, mtype=1):
    """A recording whose only record claims anything, with a checksum that fits."""
    RecordingWriter(path, force=True).close()
    fields = struct.pack("<IIqq", len(stored) if stored_size is None else stored_size, size, mtype, 0)
    with open(path, "ab") as file:
        file.write(fields + struct.pack("<I", zlib.crc32(stored, zlib.crc32(fields))) + stored)


@each(
    "size, stored, stored_size, why",
    [
        ((1 << 32) - 1, b"", None, "4294967295 bytes, more than"),
        (10, b"x", (1 << 32) - 1, "4294967295 bytes, more than"),
        (MAX_PAYLOAD + 1, b"", None, "more than"),
        (10, zlib.compress(bytes(1 << 26)), None, "does not unpack to the 10 bytes"),  # a bomb
        (1 << 25, zlib.compress(bytes(10)), None, "does not unpack to the 33554432 bytes"),
        (10, zlib.compress(bytes(10)) + b"more", None, "does not unpack"),
        (10, zlib.compress(bytes(10))[:-1], None, "does not unpack"),
        (3, b"abc", None, "incorrect header check"),
        (10, b"x", MAX_PAYLOAD, None),  # beyond the file: cut
    ],
)
def test_lying_lengths_are_refused_before_memory_is_taken(path, size, stored, stored_size, why):
    forged(path, size, stored, stored_size)
    tracemalloc.start()
    try:
        if why is None:
            assert contents(path)[1] is not None
        else:
            with pytest.raises(RecordingError, match=why):
                contents(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@each(
    "at, new, sealed, why",
    [
        (0, b"\x7fELF", False, "is not a recording"),
        (8, b"\2", False, "format version 2"),
        (10, b"\t", True, "channel number 9"),
        (12, bytes(4), True, "max_batch = 0"),
    ],
)
def test_headers_that_are_none(at, new, sealed, why, path):
    RecordingWriter(path, "plain", force=True).close()
    header = bytearray(path.read_bytes())
    header[at : at + len(new)] = new
    if sealed:
        header[36:] = struct.pack("<I", zlib.crc32(header[:36]))
    path.write_bytes(header)
    with pytest.raises(RecordingError, match=why):
        Recording(path)
    for mtype in 0, -1:
        forged(path, 1, zlib.compress(b"x"), mtype=mtype)
        with pytest.raises(RecordingError, match=f"message type {mtype}"):
            contents(path)
        refusal = pytest.raises(ValueError, match=f"mtype = {mtype} is outside 1")
        with RecordingWriter(path, force=True) as recording, refusal:
            recording.write(b"x", mtype)
    for kind in Recording, is_recording:
        with open(path, encoding="utf-8") as text, pytest.raises(TypeError, match="mode 'rb'"):
            kind(text)


@each("before, at_the_end", [(b"", 0), (b"what others wrote", 0), (b"what others wrote", os.O_APPEND)])
def test_a_full_disk_loses_nothing_that_came_before(path, before, at_the_end):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(before)
    descriptor = os.open(path, os.O_WRONLY | at_the_end)
    os.lseek(descriptor, 0 if at_the_end else len(before), os.SEEK_SET)
    with RecordingWriter(descriptor) as recording:
        recording.write(b"first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + recording.file_bytes + 50, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                recording.write(random.Random(2).randbytes(1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        recording.write(b"last")
    whole = path.read_bytes()
    assert whole.startswith(before)
    path.write_bytes(whole.removeprefix(before))
    assert [message[0] for message in contents(path)[0]] == [b"first", b"last"]
    assert contents(path)[1] is None


# ---- Steps -----------------------------------------------------------------------------------------------


def in_pieces(number, pieces=5, channel="spec_topk", sender=9):
    """A step, and the messages of its frame."""
    step = random_step(channel, number, batch=20, cols=3, accepted=1)
    whole = reference.encode_frame(ReferenceStep.from_step(step), seq=number, sender=sender)
    return step, reference.split(whole, 64 - (64 - len(whole)) // pieces)


def test_steps_of_a_recording_are_joined_on_their_own_channels(path):
    """Of two senders that alternate, a whole frame and a stock message; what lacks a piece is counted."""
    (one, first), (two, second) = in_pieces(1, sender=1), in_pieces(2, channel="topk", sender=2)
    third = in_pieces(3, sender=1)[1]
    plain = fp.Step.from_arrays("plain", [1], [[7]])
    with RecordingWriter(path) as recording:
        for pair in zip(first, second, strict=True):
            for message in pair:
                recording.write(message, 2)
        recording.write(fp.encode(plain, "compact"), 2)
        for message in third[:-1]:
            recording.write(message, 2)
        recording.write(fp.encode(plain), 1)
    with Recording(path) as recording:
        assert recording.channel is None
        assert list(recording.steps("plain")) == [one, two, plain, plain]
        assert recording.incomplete == 1
        with pytest.raises(ValueError, match=r"message 15 of .* does not say its channel"):
            list(recording.steps())


def test_a_channel_that_all_frames_say_is_the_recordings(path, tmp_path):
    step, pieces = in_pieces(1)
    with RecordingWriter(path, layout=fp.Layout(128, 20, 6)) as recording:
        for message in pieces:
            recording.write(message, 2)
    with Recording(path) as recording:
        assert (recording.channel, recording.layout) == ("spec_topk", fp.Layout(128, 20, 6))
        assert list(recording.steps()) == [step]
    with pytest.raises(fp.MalformedMessage, match=r"split into \d, .* Recording.steps\(\) those of a rec"):
        fp.decode(pieces[0], "spec_topk", mtype=2)
    for flags, channel in (os.O_APPEND, None), (0, "spec_topk"):  # appending, nothing is written over
        file = os.open(tmp_path / str(flags), os.O_RDWR | os.O_CREAT | flags, 0o600)
        with RecordingWriter(file) as recording:
            recording.write(pieces[0], 2)
        with Recording(tmp_path / str(flags)) as recording:
            assert recording.channel == channel
            assert [message.payload for message in recording] == pieces[:1]
