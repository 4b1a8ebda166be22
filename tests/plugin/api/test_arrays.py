"""Arrays and masks of a result: bytes until somebody looks, and the same JSON."""

import base64
import copy
import gc
import json
import random
import sys
import types

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy import array_readers
from fd_postproc.fastdeploy.api import unpacking
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.chunks._chunks import (
    ARRAY,
    JoinedMasks,
    Models,
    extend_lists_by,
    join_masks,
    keep_packed,
    read_arrays_by,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from tests.lib.chunk_replay.alone import models

KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


class Answer(models.BaseModel):
    id: str
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None


ANSWER = models_of(Answer, {Answer: None}, float_style())


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
    keep_packed(masks=True, arrays=True)
    read_arrays_by([encoded.__code__])
    yield
    keep_packed(masks=False, arrays=False)
    read_arrays_by([])


def arrays():
    draw = np.random.default_rng(4)
    for kind in KINDS:
        limits = np.iinfo(kind)
        for count in (1, 2, 3, 4, 5, 100, 24576, 24577, 49152, 100_001):
            yield draw.integers(limits.min, limits.max, count, kind, endpoint=True)
        yield draw.integers(0, 5, (6, 3, 2)).astype(kind)
        yield draw.integers(0, min(limits.max, 40000), (500, 7)).astype(kind)
        yield draw.integers(0, 2, (3, 2, 2, 5)).astype(kind)


@pytest.mark.parametrize("array", [*arrays()], ids=lambda array: f"{array.dtype} {array.shape}")
def test_base64_is_numpys(array):
    result = unpack(msgpack.packb({"routing_data": one_value(array)}))
    answer = ANSWER(id="x", routed_experts=encoded(result["routing_data"]))
    assert type(ANSWER) is Models
    assert answer.routed_experts == expected(array)
    right = Answer(id="x", routed_experts=expected(array))
    assert answer.model_dump_json() == right.model_dump_json()
    assert answer.model_dump() == right.model_dump()
    pieces = answer.response_pieces()
    list(pieces.settle())
    body = list(pieces)
    assert json.loads(b"".join(body)) == right.model_dump()
    assert pieces.size == len(b"".join(body))
    assert max(map(len, body)) <= (1 << 18) + 2
    assert answer.model_copy() == right  # the model itself


@pytest.mark.parametrize("array", [*arrays()][::6], ids=lambda array: f"{array.dtype} {array.shape}")
def test_whoever_looks_finds_the_lists(array):
    value = unpack(msgpack.packb([one_value(array)]))[0]
    lists = array.tolist()
    assert isinstance(value, list)
    assert not isinstance(value, np.ndarray)
    assert not hasattr(value, "tobytes")
    assert value == lists
    assert len(value) == len(lists)
    assert copy.deepcopy(value) == lists
    assert np.array(value).tolist() == lists
    assert encoded(value) == expected(array)
    assert lists_of_msgpack(array) == lists == unpack(msgpack.packb([one_value(array)]), False)[0]


def lists_of_msgpack(array):
    """Where something else in the message is not known, msgpack unpacks it."""
    message = msgpack.packb([one_value(array), b"not known"])
    return unpacking.UnpackingMsgpack(msgpack).unpackb(message)[0]


def test_a_changed_array_is_written_as_changed():
    value = unpack(msgpack.packb([one_value(np.arange(6).reshape(3, 2))]))[0]
    value[0][0] = 700
    assert encoded(value) == expected(np.array([[700, 1], [2, 3], [4, 5]]))


def test_floats_become_lists():
    array = np.array([[0.5, -1e-9], [np.inf, 3]])
    for kind in ("f4", "f8"):
        value = unpack(msgpack.packb([one_value(array.astype(kind))]))[0]
        assert value == array.astype(kind).tolist()


def test_nothing_outlives_the_answer():
    value = unpack(msgpack.packb([one_value(np.zeros((100, 46, 8), np.uint8))]))[0]
    answer = ANSWER(id="x", routed_experts=encoded(value))
    gc.disable()
    try:
        assert len(answer.model_dump_json()) > 100 * 46 * 8 * 8
        before = _chunks.arrays_waiting()
        del value
        assert _chunks.arrays_waiting() == before > 0  # the answer's
        del answer
        assert _chunks.arrays_waiting() == 0
    finally:
        gc.enable()


def test_a_text_that_is_no_token_is_a_text():
    text = "x" * 48
    assert ANSWER(id=text, routed_experts=text).model_dump() == {
        "id": text,
        "routed_experts": text,
        "sampling_mask": None,
    }


MALFORMED = (
    b"",
    b"u",
    b"u\x01\x01\0",
    b"u\x01\x01\0\x02\0\0\0a",
    b"u\x01\x01\0\0\0\0\0",
    b"x\x01\x01\0\x01\0\0\0a",
)


@pytest.mark.parametrize("content", [*MALFORMED, b"u\x01\x05\0" + b"\x01\0\0\0" * 5 + b"a"], ids=repr)
def test_what_is_no_array_is_refused(content):
    with pytest.raises(_chunks.Unknown):
        unpack(msgpack.packb([msgpack.ExtType(ARRAY, content)]))
    with pytest.raises(ValueError, match="no array"):
        _chunks.lists_of(content)


def test_random_heads_are_refused_or_right():
    draw = random.Random(6)
    for _ in range(20_000):
        shape = (
            draw.randbytes(4 * draw.randint(1, 4))
            if draw.random() < 0.5
            else b"\1\0\0\0" * draw.randint(1, 4)
        )
        content = bytes([draw.choice(b"iuf"), draw.choice((1, 2, 4, 8)), len(shape) // 4, 0]) + shape
        content += bytes(draw.choice((0, 1, 2, 4, 8, 16)))
        try:
            value = unpack(msgpack.packb([msgpack.ExtType(ARRAY, content)]))[0]
        except _chunks.Unknown:
            continue
        assert repr(value).count("0") == 1 or "0.0" in repr(value)


MASKS = (
    *([5], [5, 70_000, -1, 1 << 40], [[1, 2], [3]], [[], [1]], [[1], []], [[]], list(range(3000))),
    *([[*range(n)] for n in range(100)], [[1, 2]] * 70),
)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: str(mask)[:20])
def test_masks_are_the_same(mask):
    def result():
        return unpack(msgpack.packb({"sampling_mask": mask}))["sampling_mask"]

    assert isinstance(result(), list)
    assert result() == mask
    assert len(result()) == len(mask)
    assert bool(result())
    assert isinstance(result()[0], list) == isinstance(mask[0], list)
    assert result()[0] == mask[0]
    assert list(result()) == mask
    assert copy.deepcopy(result()) == mask
    assert json.dumps(list(result())[:0]) == "[]"
    rows = result() if isinstance(mask[0], list) else [result()]
    right = Answer(id="x", sampling_mask=mask if isinstance(mask[0], list) else [mask])
    for answer in (ANSWER(id="x", sampling_mask=rows), ANSWER(id="x", sampling_mask=list(rows))):
        assert answer.model_dump_json() == right.model_dump_json()
        assert answer.model_dump() == right.model_dump()
        assert type(answer.model_dump()["sampling_mask"][0]) is list
        pieces = answer.response_pieces()
        if pieces.whole is None:
            list(pieces.settle())
            assert json.loads(b"".join(pieces)) == right.model_dump()
        assert answer.model_copy() == right


@pytest.mark.parametrize("mask", [[], [1, [2]], [[1], 2], [1.5], [[True]], "x", None, [1 << 63], [["x"]]])
def test_other_masks_are_unpacked_as_ever(mask):
    value = unpack(msgpack.packb({"sampling_mask": mask}))["sampling_mask"]
    assert type(value) is type(mask)
    assert value == mask


def test_a_mask_that_is_no_list_is_the_models_business():
    with pytest.raises(ValueError, match="sampling_mask"):
        ANSWER(id="x", sampling_mask=[["x"]])


def test_masks_are_small():
    message = msgpack.packb([{"sampling_mask": list(range(1000, 3000))}])
    value = unpack(message)[0]["sampling_mask"]
    assert sys.getsizeof(value) < 2 * 3 * 2000


def flattened(steps):
    """As FastDeploy's serving code has it."""
    return [mask for step in steps for mask in step]


@pytest.fixture
def joining():
    inner = (one for one in flattened.__code__.co_consts if isinstance(one, types.CodeType))
    extend_lists_by([flattened.__code__, *inner])
    yield
    extend_lists_by([])


def steps_of(rows):
    """Masks of an answer's steps, most of one token and others of several, as FastDeploy keeps them."""
    draw, made = random.Random(7), []
    while rows:
        masks, rows = rows[: (count := draw.choice((1, 1, 1, 2, 3)))], rows[count:]
        value = masks[0] if count == 1 and masks[0] else masks
        value = unpack(msgpack.packb({"sampling_mask": value}))["sampling_mask"]
        made.append(value if value and isinstance(value[0], list) else [value])
    return made


def random_rows(count):
    draw = random.Random(count)
    return [[draw.choice((5, 300, 70_000, 1 << 40)) for _ in range(draw.randint(0, 9))] for _ in range(count)]


def body_of(answer):
    pieces = answer.response_pieces()
    list(pieces.settle())
    return b"".join(pieces)


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("count", [1, 63, 70, 200, 9000])
def test_joined_masks_are_the_same(count):
    rows = random_rows(count)
    steps, right = steps_of(rows), Answer(id="x", sampling_mask=rows)
    many, turns = len(steps) >= 64, 1 + len(list(join_masks(steps)))
    assert (type(steps[0]) is JoinedMasks) == many
    assert turns >= (len(rows) / 3 / 512 if many else 1)
    taken = flattened(steps)
    assert (taken == [steps[0]]) == many
    answer = ANSWER(id="x", sampling_mask=taken)
    assert answer.model_dump_json() == right.model_dump_json()
    assert json.loads(body_of(answer)) == right.model_dump()
    assert answer.model_dump() == right.model_dump()
    assert answer.model_copy() == right
    assert answer.model_dump_json() == right.model_dump_json()
    with pytest.raises(ValueError, match="id"):
        ANSWER(id=[], sampling_mask=taken)


@pytest.mark.usefixtures("joining")
def test_what_is_joined_is_no_longer_held():
    steps = steps_of(random_rows(9000))
    joining = join_masks(steps)
    next(joining)
    assert steps[0] is None
    assert steps[-1] is not None
    for _ in joining:
        pass
    assert len(steps) == 1


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("other", [[[True]], [[1 << 64]], [["x"]], "x", None])
def test_masks_from_one_on_that_is_not_packed_are_left(other):
    rows = [one or [1] for one in random_rows(300)]
    steps = [*steps_of(rows[:200]), other, *steps_of(rows[200:])]
    list(join_masks(steps))
    assert type(steps[0]) is JoinedMasks
    assert steps[1] is other
    if type(other) is list and other != [["x"]]:
        right = Answer(id="x", sampling_mask=[*rows[:200], *other, *rows[200:]])
        assert ANSWER(id="x", sampling_mask=flattened(steps)).model_dump() == right.model_dump()


@pytest.mark.usefixtures("joining")
def test_masks_of_an_answer_that_goes_on():
    """Another choice of the request has ended before."""
    rows = random_rows(300)
    steps = steps_of(rows[:200])
    list(join_masks(steps))
    steps += steps_of(rows[200:])
    list(join_masks(steps))
    assert len(steps) == 1
    assert ANSWER(id="x", sampling_mask=flattened(steps)).model_dump()["sampling_mask"] == rows


def test_whoever_looks_at_joined_masks_finds_the_lists():
    rows = random_rows(200)
    steps = steps_of(rows)
    list(join_masks(steps))
    assert [mask for step in steps for mask in step] == rows
    steps[0][3] = [77]
    assert steps[0] == [*rows[:3], [77], *rows[4:]]
    before = list(steps)
    list(join_masks(steps))
    assert steps == before
    assert ANSWER(id="x", sampling_mask=steps[0]).model_dump()["sampling_mask"][3] == [77]


def test_a_log_has_no_long_lists():
    def logs(answer):
        return answer.model_dump_json()

    answer = ANSWER(id="x", sampling_mask=[[1]] * 5000)
    _chunks.shorten_for([logs.__code__])
    try:
        assert json.loads(logs(answer)) == {
            "id": "x",
            "routed_experts": None,
            "sampling_mask": "<5000 items>",
        }
        assert len(answer.model_dump_json()) > 5000
    finally:
        _chunks.shorten_for([])


def test_a_name_is_held_as_long_as_the_process_lives():
    path = f"/dev/shm/response_{random.randrange(1 << 40)}_w5.pull"
    assert not array_readers.reads_arrays(f"ipc://{path}")
    held = array_readers.announce(path)
    assert array_readers.reads_arrays(f"ipc://{path}")
    assert array_readers.announce(path) is None
    held.close()
    assert not array_readers.reads_arrays(path)
    assert isinstance(array_readers, types.ModuleType)
