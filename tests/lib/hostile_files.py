"""Files that no program wrote: recordings, flight recorders' files and raw messages, changed with a seed.

A checksum lets nearly every change of a byte fall at the first gate, so wild values are also written with
checksums that hold.
"""

import random
import struct
import zlib

import numpy as np

from fd_postproc import recording
from fd_postproc._core import CHANNELS, _check_words, encode
from fd_postproc.flight import codes
from fd_postproc.flight.codes import ENTRY_SIZE, HEAD_SIZE, Kind
from tests.lib.random_steps import random_step

REQUEST = "chatcmpl-1f0c"
"""A request whose hash is in some of the flight recorder's files."""

_EDGES = [0, 1, 2, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62) + 7, (1 << 63) - 1]
WILD = sorted({*_EDGES, *(-edge for edge in _EDGES), -(1 << 63)})
_SPANS = [0.0, 1e-4, -1.0, 3e38, float("inf"), float("nan")]
_KINDS = [*Kind, 0, 7, 63, 255]


def file_of(seed):
    """The bytes of a file, and what it was made as: recording, flight or message."""
    rng = random.Random(seed)
    kind = rng.choice(["recording", "flight", "flight", "message"])
    made = {"recording": _recording, "flight": _flight, "message": _message}[kind](rng)
    if rng.random() < 0.4:
        made = _damaged(made, rng)
    return made, kind


def _wild(rng, bits):
    """A number of so many bits, with its sign: an edge, or any."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    value = rng.choice(WILD) if rng.random() < 0.7 else rng.getrandbits(bits)
    return min(max(value, low), high)


def _damaged(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at, size = rng.randrange(len(data) + 1), rng.choice([1, 2, 4, 8])
        change = rng.randrange(3)
        if change == 0:
            data[at : at + size] = (_wild(rng, 64) & (1 << 8 * size) - 1).to_bytes(size, "little")
        elif change == 1:
            del data[at : at + rng.randint(1, 1 + len(data) // 4)]
        else:
            data[at:at] = data[: rng.randrange(200)]
    return bytes(data)


def _message(rng):
    """A message of any channel and dialect, short enough to be made in no time."""
    channel = rng.choice(CHANNELS)
    step = random_step(channel, rng.getrandbits(32), batch=rng.randint(0, 4), cols=rng.choice([1, 3, 21]))
    return encode(step, rng.choice(["compact", "legacy", "packed"]))


# ---- recordings ----------------------------------------------------------------------------------------


def _recording(rng):
    """A recording whose checksums hold, with wild numbers in some places."""
    number = rng.choice([*range(len(CHANNELS)), 255, rng.randrange(256)])
    layout = [512, 20, 6, 256] if rng.random() < 0.8 else [_wild(rng, 32) for _ in range(4)]
    version = 1 if rng.random() < 0.95 else rng.randrange(1 << 16)
    head = recording._HEADER.pack(recording._MAGIC, version, number, *layout, _wild(rng, 64), 0)[:-4]
    parts = [head, struct.pack("<I", zlib.crc32(head))]
    for _ in range(rng.randint(0, 4)):
        payload = _message(rng) if rng.random() < 0.7 else rng.randbytes(rng.choice([0, 5, 300]))
        stored = zlib.compress(payload, 1) if rng.random() < 0.9 else rng.randbytes(20)
        stored_size = len(stored) if rng.random() < 0.95 else _wild(rng, 32) & 0xFFFFFFFF
        size = len(payload) if rng.random() < 0.95 else _wild(rng, 32) & 0xFFFFFFFF
        mtype = rng.choice([1, 2, 1, 2, _wild(rng, 64)])
        fields = recording._RECORD.pack(stored_size, size, mtype, _wild(rng, 64), 0)[:-4]
        parts += [fields, struct.pack("<I", zlib.crc32(stored, zlib.crc32(fields))), stored]
    return b"".join(parts)


# ---- flight recorders' files ---------------------------------------------------------------------------


def _flight(rng):
    """A flight recorder's file whose check words hold, with wild times, kinds and numbers."""
    places = rng.choice([1, 2, 8, 64])
    newest = rng.choice([places, rng.randint(1, 3 * places), _wild(rng, 64) & (1 << 63) - 1])
    began = 10**12 if rng.random() < 0.5 else _wild(rng, 64)
    data = bytearray(_flight_head(rng, places, began).ljust(HEAD_SIZE, b"\0"))
    busy = rng.choice([0, 0, 10**12, _wild(rng, 64) & (1 << 64) - 1])
    codes.BUSY_WORD.pack_into(data, codes.BUSY_AT, busy)
    entries = bytearray(ENTRY_SIZE * places)
    kept = _kept_message(rng) if rng.random() < 0.5 else []
    for number in range(max(newest - places + 1, 1), newest + 1):
        when = began + 1000 * (number % places) if rng.random() < 0.8 else _wild(rng, 64)
        kind, flags, slot, body = kept.pop(0) if kept else _entry(rng)
        at = ENTRY_SIZE * (number % places)
        head = struct.pack("<QIBBHQ", number, 0, kind, flags, slot, when & (1 << 64) - 1)
        entries[at : at + ENTRY_SIZE] = head + body
    words = np.frombuffer(entries, "<u8").reshape(places, ENTRY_SIZE // 8)
    checks = np.frombuffer(_check_words(bytes(data) + bytes(entries), places), "<u4")
    words[:, 1] |= np.where(words.any(axis=1), checks, 0).astype(np.uint64)
    return bytes(data) + bytes(entries)


def _kept_message(rng):
    """Entries of a message that was kept."""
    message = _message(rng)[: rng.choice([40, 2000])]
    parts = [message[at : at + 40] for at in range(0, len(message), 40)]
    numbers = codes.NUMBERS.pack(rng.choice([1, 1, 2, _wild(rng, 64)]), len(message), 0, 0, 0)
    return [(Kind.FRAME, 0, 65535, numbers)] + [
        (Kind.DATA, int(part is not parts[-1]), len(part), part.ljust(40, b"\0")) for part in parts
    ]


def _flight_head(rng, places, began):
    return codes.HEAD.pack(
        codes.MAGIC,
        codes.VERSION if rng.random() < 0.97 else 99,
        ENTRY_SIZE,
        places if rng.random() < 0.9 else _wild(rng, 64) & 0xFFFFFFFF,
        rng.choice([1, 4711, _wild(rng, 64)]),  # process
        rng.choice([began, _wild(rng, 64)]),
        began,
        _wild(rng, 64),  # id and key of the queue
        _wild(rng, 32),
        rng.choice([b"topk\0engine", b"spec\0worker", b"spec_topk\0engine", rng.randbytes(16)]),
        rng.choice([b"0.1.0", rng.randbytes(32), b"\x1b[31m"]),
    )


def _entry(rng):
    """Kind, flags, slot and body of an entry."""
    kind = int(rng.choice(_KINDS))
    if kind == Kind.STEP:
        words, spans = [_u32(rng) for _ in range(3)], [rng.choice(_SPANS) for _ in range(3)]
        body = codes.STEP_BODY.pack(rng.getrandbits(64), *words, *spans, 4, 4, 9)
    elif kind == Kind.QUEUE:
        words = [_u32(rng) for _ in range(4)]
        body = codes.QUEUE_BODY.pack(*words, 7, 8, 1, 0, rng.choice([0, 83, 90]), _u32(rng), _wild(rng, 32))
    elif kind in (Kind.TEXT, Kind.DATA):
        body = rng.choice([b"mtype", b"RuntimeError in x.py:1 (f)", rng.randbytes(40)]).ljust(40, b"\0")
    else:
        first = rng.choice([codes.request_hash(REQUEST), _wild(rng, 64)])
        body = codes.NUMBERS.pack(first, *(_wild(rng, 64) for _ in range(4)))
    slot = rng.choice([0, 1, 40, 65535, rng.randrange(1 << 16)])
    return kind, rng.choice([0, 0, 1, rng.randrange(256)]), slot, body


def _u32(rng):
    return _wild(rng, 64) & 0xFFFFFFFF
