"""Frames that were changed on the way, and frames that are missing, doubled or out of order."""

import ctypes
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sysv_ipc
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from tests import reference
from tests.lib.paths import ROOT
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE
from tests.reference import FrameHeader, Reassembler, ReferenceStep
from tests.reference.crc32c import crc32c
from tests.reference.sequences import Sequences

SMALL = fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)
CHANNEL = "spec_topk"


def step_number(seq, channel=CHANNEL):
    return random_step(channel, seq, batch=6, cols=4, accepted=2, layout=SMALL)


def frame(sender, seq, *, checksum=True, channel=CHANNEL):
    step = ReferenceStep.from_step(step_number(seq, channel))
    return reference.encode_frame(step, sender=sender, seq=seq, checksum=checksum)


def flipped(message, bit):
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture
def queue(queue_key):
    return sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREAT, max_message_size=8192)


class Reader:
    """A Receiver, and the reference beside it, which must agree about each message."""

    def __init__(self, queue):
        self.queue = queue
        self.receiver = fp.Receiver(CHANNEL, key=queue.key, layout=SMALL)
        self.oracle = Reassembler(CHANNEL, SMALL)

    def push(self, *messages):
        """Steps, and fields that were refused."""
        outcomes = []
        for message in messages:
            self.queue.send(message, type=2)
            pair = [self._of(lambda: self.receiver.receive(0)), self._of(lambda: self.oracle.add(message))]  # noqa: B023
            assert pair[0] == pair[1]
            outcomes += [one for one in pair[:1] if one is not None]
        stats, numbers = self.receiver.stats, self.oracle.sequences
        assert (stats["missing"], stats["doubled"], stats["reordered"]) == (
            numbers.missing,
            numbers.doubled,
            numbers.reordered,
        )
        assert self.receiver.senders == numbers.senders
        return outcomes

    @staticmethod
    def _of(attempt):
        try:
            step = attempt()
        except fp.MalformedMessage as error:
            return error.field
        return ReferenceStep.from_step(step) if isinstance(step, fp.Step) else step

    def counted(self, *names):
        return tuple(self.receiver.stats[name] for name in names)


@pytest.fixture
def reader(queue):
    return Reader(queue)


def expected(*seqs):
    return [replace(ReferenceStep.from_step(step_number(seq)), dialect="compact", seq=seq) for seq in seqs]


# ---- The sum itself --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """``crc32c.h`` with each of its ways, by the host's C compiler."""
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("crc32c")
    (folder / "crc32c.c").write_text(
        '#include "fd_postproc/headers/crc32c.h"\n'
        "int has_instruction(void) {\n"
        "    fdi_fill_bytes();\n"
        "#ifdef FDI_HARDWARE\n"
        "    return fdi_has_instruction;\n"
        "#else\n"
        "    return 0;\n"
        "#endif\n"
        "}\n"
        "uint32_t by_tables(const void *data, int64_t size)\n"
        "{ return fdi_last(fdi_by_tables(FDI_FIRST, data, size)); }\n"
        "uint32_t sum(const void *data, int64_t size)\n"
        "{ return fdi_last(fdi_add(FDI_FIRST, data, size)); }\n"
    )
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{ROOT}"]
    subprocess.run(
        [*compiler, *flags, folder / "crc32c.c", "-o", folder / "crc32c.so"],
        check=True,
    )
    library = ctypes.CDLL(str(folder / "crc32c.so"))
    for name in "by_tables", "sum":
        getattr(library, name).restype = ctypes.c_uint32
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.has_instruction()  # fills the tables, which it needs no more
    return library


# RFC 3720, appendix B.4; and the check value of the catalogue of CRCs.
KNOWN = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@each("data, value", KNOWN)
def test_known_sums(compiled, data, value):
    assert crc32c(data) == compiled.by_tables(data, len(data)) == compiled.sum(data, len(data)) == value


@given(seed=st.integers(0, 1 << 32), size=st.integers(0, 5000))
def test_all_ways_agree(compiled, seed, size):
    """In three streams from 1,536 bytes on."""
    data = random.Random(seed).randbytes(size)
    assert crc32c(data) == compiled.by_tables(data, size) == compiled.sum(data, size)


def test_the_instruction_is_used_where_the_processor_has_it(compiled):
    """By the host's compiler; of a wheel, made by another one, .ci/try_wheel.py asks it."""
    feature = {"x86_64": "sse4_2", "aarch64": "crc32"}.get(platform.machine())
    if feature not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has no instruction for the sum")
    assert compiled.has_instruction()
    assert fp._core._sums_by_instruction()


# ---- Changed bytes ---------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_frame_is_found(decode_both):
    whole = frame(1, 5)
    fields = set()
    for bit in range(8 * len(whole)):
        error = decode_both(flipped(whole, bit), CHANNEL, mtype=2, layout=SMALL)
        assert isinstance(error, fp.MalformedMessage), bit
        assert bit < 8 * 64 or error.field == "checksum"
        fields.add(error.field)
    assert fields >= {"magic", "version", "channel", "flag", "batch", "columns", "rows", "length", "checksum"}


def test_a_flipped_bit_costs_its_frame_and_no_other(reader):
    """Of another sender's frame in pieces, half of it before and half of it after."""
    neighbour = reference.split(frame(2, 1), 300)
    for seq, byte in enumerate([40, 48, 55, 60, 63, 64, 100, -1]):
        whole = frame(1, seq)
        bit = 8 * (byte % len(whole)) + seq % 8
        reader.push(neighbour[0])
        assert reader.push(flipped(whole, bit)) == ["checksum"]
        assert reader.push(*neighbour[1:]) == expected(1)
        assert reader.push(frame(1, seq)) == expected(seq)
    assert reader.counted("malformed", "corrupt", "incomplete") == (8, 8, 0)


def test_a_frame_with_the_number_of_another_sender_does_not_end_its_open_frame(reader):
    neighbour = reference.split(frame(2, 1), 300)
    forged = frame(1, 7)
    forged = FrameHeader.unpack(forged)._replace(sender=2).pack() + forged[64:]
    reader.push(neighbour[0])
    assert reader.push(forged) == ["checksum"]
    assert reader.push(*neighbour[1:]) == expected(1)
    assert 1 not in reader.receiver.senders


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_every_flipped_byte_of_a_frame_in_pieces_is_found(reader, every):
    parts = reference.split(frame(1, 0), 200)
    assert len(parts) > 3
    seq = 0
    rng = random.Random(1)
    for place, part in enumerate(parts):
        for byte in range(0, len(part), every):
            seq += 2
            changed = reference.split(frame(1, seq), 200)
            changed[place] = flipped(changed[place], 8 * byte + rng.randrange(8))
            before = sum(reader.counted("malformed", "incomplete"))
            outcomes = reader.push(*changed)
            assert [one for one in outcomes if not isinstance(one, str)] == [], (place, byte)
            assert reader.push(*reference.split(frame(1, seq + 1), 200)) == expected(seq + 1)
            assert sum(reader.counted("malformed", "incomplete")) > before, (place, byte)
    if every == 1:
        assert reader.counted("corrupt")[0] == len(frame(1, 0)) - 64


@each("limit", [8192, 300])
def test_a_frame_that_is_cut_or_padded(reader, limit):
    for by in range(-40, 41, 4):
        if by:
            *parts, last = reference.split(frame(1, 1), limit)
            last = last[:by] if by < 0 else last + bytes(by)
            assert [one for one in reader.push(*parts, last) if not isinstance(one, str)] == []
    assert reader.push(*reference.split(frame(1, 2), limit)) == expected(2)


def test_rows_that_have_changed_places(decode_both):
    whole = bytearray(frame(1, 1))
    whole[100:116], whole[116:132] = whole[116:132], whole[100:116]
    assert decode_both(bytes(whole), CHANNEL, mtype=2, layout=SMALL).field == "checksum"


def test_the_error_says_what_a_checksum_is(decode_both):
    error = decode_both(flipped(frame(1, 5), 999), CHANNEL, mtype=2, layout=SMALL)
    assert f"{error.value:#010x}" in str(error)
    assert f"{error.bound:#010x}" in str(error)
    assert "changed after they were sent" in str(error)


# ---- Old and new -----------------------------------------------------------------------------------------

# A frame of a sender that knows of no checksums: channel spec, one request with two tokens.
OLD = bytes.fromhex(
    "feffffff 00000000 00000000 46445050 01 02 00 00 01000000 01000000 01000000 02000000 4c000000"
    "0500000000000000 0700000000000000 0000 0100 00000000 02000000 2a000000 2b000000"
)


def test_frames_without_a_checksum_are_read(decode_both):
    step = decode_both(OLD, "spec", mtype=2)
    assert step.token_ids(0) == [42, 43]
    assert step.seq == 5


def test_a_new_frame_is_an_old_one_with_reserved_bytes():
    """Readers that know of no checksums ignore bytes 19 and 60 to 63, so that they read on."""
    new = reference.seal(OLD)
    assert [at for at in range(len(OLD)) if OLD[at] != new[at]] == [19, 60, 61, 62, 63]
    assert FrameHeader.unpack(new).version == 1


def test_a_checksum_without_its_mark_is_refused(decode_both):
    new = frame(1, 5)
    unmarked = FrameHeader.unpack(new)._replace(features=0).pack() + new[64:]
    assert decode_both(unmarked, CHANNEL, mtype=2, layout=SMALL).field == "checksum"


def test_old_senders_beside_new_ones(reader):
    for seq in range(4):
        old = frame(2, seq, checksum=False)
        parts = reference.split(frame(1, seq), 300)
        assert reader.push(*parts[:2], *reference.split(old, 300), *parts[2:]) == expected(seq, seq)


# ---- The switch ------------------------------------------------------------------------------------------


def sent(queue, **options):
    """What a Sender's frame looks like."""
    with fp.Sender(CHANNEL, key=queue.key, layout=SMALL, dialect="compact", **options) as sender:
        sender.send(step_number(3))
    return queue.receive(type=2)[0]


@each("value, features", [(None, 1), ("1", 1), ("on", 1), ("", 1), ("0", 0), ("off", 0)])
def test_what_a_sender_sends(monkeypatch, queue, value, features):
    if value is None:
        monkeypatch.delenv("FD_POSTPROC_CHECKSUM", raising=False)
    else:
        monkeypatch.setenv("FD_POSTPROC_CHECKSUM", value)
    message = sent(queue)
    header = FrameHeader.unpack(message)
    assert header.features == features
    assert bool(header.checksum) == bool(features)
    bare = header._replace(features=0, checksum=0).pack() + message[64:]
    assert message == (reference.seal(bare) if features else bare)
    encoded = fp.encode(step_number(3), "compact", layout=SMALL)
    assert FrameHeader.unpack(encoded).features == features


def test_pieces_carry_the_checksum_of_the_whole(queue):
    layout, step = fp.GPU, random_step(CHANNEL, 1, batch=256, cols=21, accepted=2)
    whole = reference.encode_frame(ReferenceStep.from_step(step))
    sender = fp.Sender(CHANNEL, key=queue.key, layout=layout, dialect="compact")
    with pytest.raises(fp.QueueTimeout):  # after the first pieces
        sender.send(step, timeout=0)
    first = FrameHeader.unpack(queue.receive(type=2)[0])
    body = whole[64:]
    again = first._replace(fragment=0, fragments=1, checksum=0).pack() + body
    assert first.fragments > 1
    assert first.checksum == crc32c(again)


def test_a_reader_that_does_not_verify(monkeypatch, queue, decode_both):
    monkeypatch.setenv("FD_POSTPROC_CHECKSUM", "0")
    receiver = fp.Receiver(CHANNEL, key=queue.key, layout=SMALL)
    message = frame(1, 5)
    wrong = message[:-1] + bytes([message[-1] ^ 1])  # a rank
    queue.send(wrong, type=2)
    assert receiver.receive(0).seq == 5
    assert fp.decode(wrong, CHANNEL, mtype=2, layout=SMALL).seq == 5
    assert receiver.stats["corrupt"] == 0
    for part in reference.split(wrong, 300):
        queue.send(part, type=2)
    assert receiver.receive(0).seq == 5


def test_save_ops_send_checksums(monkeypatch, queue_key):
    code = f"""
import ctypes, sys, sysv_ipc
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from fd_postproc import ops, queues
from tests import reference
queues.locate = lambda *args, **options: {queue_key}
key = {queue_key}
queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, max_message_size=8192)
ops.save_output(np.array([[5], [6]], "i8"), np.array([True]), np.zeros((2, 1), "i4"), 0, False)
message = queue.receive(type=2)[0]
header = reference.FrameHeader.unpack(message)
bare = header._replace(features=0, checksum=0).pack() + message[64:]
assert header.features == 1 and message == reference.seal(bare)
"""
    environment = os.environ | {"FD_POSTPROC_DIALECT": "compact"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT, timeout=PATIENCE)


# ---- Missing, doubled, reordered -------------------------------------------------------------------------


def test_frames_in_order_are_no_trouble(reader):
    for seq in range(100, 110):
        assert reader.push(frame(1, seq), frame(2, 2 * seq if seq == 100 else seq + 100)) != []
    assert reader.counted("missing", "doubled", "reordered") == (0, 0, 0)
    assert reader.receiver.senders[1] == {
        "frames": 10,
        "next": 110,
        "missing": 0,
        "doubled": 0,
        "reordered": 0,
    }


@each("limit", [8192, 300])
def test_a_lost_frame_is_told_by_the_next_one(reader, limit):
    for seq in (0, 1, 4, 5):
        reader.push(*reference.split(frame(1, seq), limit))
        reader.push(frame(2, seq // 2))
    assert reader.counted("missing", "doubled", "reordered") == (3, 2, 0)
    assert reader.receiver.senders[1]["missing"] == 2
    assert reader.receiver.senders[2]["doubled"] == 2


def test_a_refused_frame_and_one_in_pieces_are_missing(reader):
    reader.push(frame(1, 0), flipped(frame(1, 1), 8 * 70))
    reader.push(*reference.split(frame(1, 2), 300)[:-1])
    assert reader.push(frame(1, 3)) == expected(3)
    assert reader.counted("corrupt", "incomplete", "missing") == (1, 1, 2)


def test_a_doubled_frame_is_delivered_and_counted(reader):
    """Numbers are no proof: a recording that is replayed twice has them twice."""
    assert reader.push(frame(1, 0), frame(1, 1), frame(1, 1), frame(1, 0)) == expected(0, 1, 1, 0)
    assert reader.counted("missing", "doubled", "reordered") == (0, 2, 0)


def test_a_frame_that_comes_late(reader):
    assert reader.push(*(frame(1, seq) for seq in (0, 2, 1, 3, 1))) == expected(0, 2, 1, 3, 1)
    assert reader.counted("missing", "doubled", "reordered") == (1, 1, 1)


def test_one_that_is_very_late(reader):
    reader.push(*(frame(1, seq) for seq in (0, 64, 1, 1, 0, 65, 1)))
    assert reader.counted("missing", "doubled", "reordered") == (63, 1, 3)


@each("start", [0, (1 << 64) - 3, (1 << 63) - 2])
def test_numbers_that_go_round(reader, start):
    for k in range(6):
        reader.push(frame(1, (start + k) % (1 << 64)))
    assert reader.counted("missing", "doubled", "reordered") == (0, 0, 0)


def test_an_absurd_gap_counts_as_a_million(reader):
    for seq in (0, 1 << 62, (1 << 63) - 1, 5):
        reader.push(frame(1, seq))
    assert reader.counted("missing", "reordered") == (2 << 20, 1)


def test_the_senders_that_were_heard_last_are_known(reader):
    for sender in (*range(70), 69, 5):
        reader.push(frame(sender, 3))
    assert sorted(reader.receiver.senders) == [5, *range(7, 70)]
    assert reader.counted("missing", "doubled", "reordered") == (0, 1, 0)


@given(seed=st.integers(0, 1 << 32))
def test_any_order_as_in_the_reference(seed):
    rng = random.Random(seed)
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, max_message_size=8192)
    try:
        reader, at = Reader(queue), [rng.choice([0, 1000, (1 << 64) - 20]) for _ in range(80)]
        busy = rng.choice([2, 80])
        whole = reference.encode_frame(ReferenceStep.from_step(fp.Step.from_arrays(CHANNEL, [], [], [], [])))
        header = FrameHeader.unpack(whole)
        for _ in range(120):
            sender = rng.randrange(busy)
            at[sender] = (at[sender] + rng.choice([1] * 8 + [0, -1, 2, 70, -70, 62, 63, -63, 64])) % (1 << 64)
            reader.push(reference.seal(header._replace(sender=sender, seq=at[sender]).pack()))
    finally:
        queue.remove()


def test_the_reference_forgets_like_the_receiver():
    numbers = Sequences()
    for sender in range(65):
        numbers.note(sender, 1)
    assert 0 not in numbers.senders
    assert len(numbers.senders) == 64


def test_a_child_has_numbers_of_its_own(queue_key):
    receiver = fp.Receiver(CHANNEL, key=queue_key, layout=SMALL)
    sender = fp.Sender(CHANNEL, key=queue_key, layout=SMALL, dialect="compact")
    sender.send(step_number(1))
    child = os.fork()
    if child == 0:
        sender.send(step_number(2))
        os._exit(0)
    os.waitpid(child, 0)
    sender.send(step_number(3))
    assert [receiver.receive(0).seq for _ in range(3)] == [0, 0, 1]
    assert sorted(one["frames"] for one in receiver.senders.values()) == [1, 2]
    assert receiver.stats["missing"] == receiver.stats["doubled"] == 0
