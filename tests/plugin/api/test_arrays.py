"""Arrays of a result, which are NumPy's, and the JSON of routed experts."""

import base64
import random

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy import array_readers
from fd_postproc.fastdeploy.api import answers, unpacking
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.chunks._chunks import ARRAY, give_arrays, unpack
from tests.lib.rows import each

KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


def one_value(array):
    head = array.dtype.kind.encode() + bytes([array.itemsize, array.ndim, 0])
    shape = np.array(array.shape, "<u4").tobytes()
    return msgpack.ExtType(ARRAY, head + shape + array.tobytes())


def encoded(rd):
    """As FastDeploy's serving code has it."""
    if not isinstance(rd, np.ndarray):
        rd = np.array(rd)
    return base64.b64encode(rd.tobytes()).decode("utf-8")


def expected(array):
    return base64.b64encode(np.array(array.tolist()).tobytes()).decode()


@pytest.fixture(autouse=True)
def packed():
    give_arrays(True)
    yield
    give_arrays(False)


def arrays():
    draw = np.random.default_rng(4)
    for kind in KINDS:
        limits = np.iinfo(kind)
        for count in (1, 2, 3, 4, 5, 100, 24576, 24577, *([100_001] if kind in ("u1", "i8") else [])):
            yield draw.integers(limits.min, limits.max, count, kind, endpoint=True)
        yield draw.integers(0, 5, (6, 3, 2)).astype(kind)
        yield draw.integers(0, min(limits.max, 40000), (500, 7)).astype(kind)
        yield draw.integers(0, 2, (3, 2, 2, 5)).astype(kind)


@each("array", [*arrays()])
def test_base64_is_numpys(array):
    """In pieces."""
    result = unpack(msgpack.packb({"routing_data": one_value(array)}))
    pieces = [*answers._base64(result["routing_data"])]
    assert b"".join(pieces).decode() == f'"{expected(array)}"'
    assert expected(array) == encoded(result["routing_data"])
    assert max(map(len, pieces)) <= (1 << 18) + 1


@each("array", [*arrays()][::6])
def test_an_array_is_numpys(array):
    """Where something else in the message is not known, msgpack unpacks it, and it is lists."""
    message, unknown = [one_value(array)], [one_value(array), b"not known"]
    give_arrays(True)
    value = unpack(msgpack.packb(message))[0]
    assert type(value) is np.ndarray
    assert value.dtype == np.int64
    assert value.flags.writeable
    assert value.tolist() == array.tolist() == unpack(msgpack.packb(message), False)[0]
    assert unpacking.UnpackingMsgpack(msgpack).unpackb(msgpack.packb(unknown))[0] == array.tolist()
    give_arrays(False)
    assert unpack(msgpack.packb(message)) == [array.tolist()]


def test_floats_are_wide():
    array = np.array([[0.5, -1e-9], [np.inf, 3]])
    for kind in ("f4", "f8"):
        value = unpack(msgpack.packb([one_value(array.astype(kind))]))[0]
        assert value.dtype == np.float64
        assert value.tolist() == array.astype(kind).tolist()


MALFORMED = (
    *(b"", b"u", b"u\x01\x01\0", b"u\x01\x01\0\x02\0\0\0a", b"u\x01\x01\0\0\0\0\0"),
    *(b"x\x01\x01\0\x01\0\0\0a", b"u\x01\x05\0" + b"\x01\0\0\0" * 5 + b"a"),
)


@each("content", MALFORMED)
def test_what_is_no_array_is_refused(content):
    with pytest.raises(_chunks.Unknown):
        unpack(msgpack.packb([msgpack.ExtType(ARRAY, content)]))
    with pytest.raises(ValueError, match="no array"):
        _chunks.lists_of(content)


def test_random_heads_are_refused_or_right():
    draw = random.Random(6)
    for _ in range(5_000):
        count = draw.randint(1, 4)
        shape = draw.choice((draw.randbytes(4 * count), b"\1\0\0\0" * count))
        content = bytes([draw.choice(b"iuf"), draw.choice((1, 2, 4, 8)), len(shape) // 4, 0]) + shape
        content += bytes(draw.choice((0, 1, 2, 4, 8, 16)))
        try:
            value = unpack(msgpack.packb([msgpack.ExtType(ARRAY, content)]))[0]
        except _chunks.Unknown:
            continue
        assert not value.any()


def test_a_name_is_held_as_long_as_the_process_lives():
    path = f"/dev/shm/response_{random.randrange(1 << 40)}_w5.pull"
    assert not array_readers.reads_arrays(f"ipc://{path}")
    held = array_readers.announce(path)
    assert array_readers.reads_arrays(f"ipc://{path}")
    assert array_readers.announce(path) is None
    held.close()
    assert not array_readers.reads_arrays(path)
