"""Results out of msgpack: as msgpack gives them, log-probabilities only when somebody looks at them."""

import copy
import gc
import pickle
import random
from collections.abc import Sequence
from types import SimpleNamespace

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api import unpacking
from fd_postproc.fastdeploy.api.chunks._chunks import LAZY, PackedRows, Unknown, unpack
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib.fakes import TwoOfThree
from tests.lib.rows import each
from tests.lib.search import examples

from .test_logprobs import STYLE, chat, columns, completion, tops

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=32),
    st.floats(-1e38, 1e38),
    st.text(max_size=40),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.dictionaries(st.one_of(st.text(max_size=60), st.sampled_from(LAZY)), inner, max_size=20),
    ),
    max_leaves=25,
)
single = st.booleans()  # floats of four bytes


def types_of(value):
    if isinstance(value, dict):
        return {key: types_of(one) for key, one in value.items()}
    return [type(value), *map(types_of, value)] if isinstance(value, list) else type(value)


# Where msgpack's formats change.
NUMBERS = [number for bits in (4, 5, 7, 8, 15, 16, 31, 32, 63) for number in ((1 << bits) - 1, 1 << bits)]
LENGTHS = (15, 16, 31, 32, 255, 256, 65536)


@examples(25)
@given(values, single)
@example([*NUMBERS, *(-1 - number for number in NUMBERS[:-1]), 0.1], True)
@example(["x" * n for n in LENGTHS] + [[None] * n for n in LENGTHS], False)
@example([dict.fromkeys(map(str, range(n)), 1.5) for n in (15, 16, 65536)], False)
def test_every_value_is_msgpacks(value, single):
    packed = msgpack.packb(value, use_single_float=single)
    expected = msgpack.unpackb(packed)
    eager = unpack(packed, False)
    assert repr(eager) == repr(expected) == repr(unpack(packed))
    assert types_of(eager) == types_of(expected)


def test_maps_with_the_keys_of_earlier_ones():
    """The same keys, another one, fewer, in another order: as msgpack, each a map of its own."""
    draw = random.Random(604)
    names = [*"abcdefghij", "ä", "k" * 31, "l" * 40, *LAZY]
    first = draw.sample(names, 9)
    for _ in range(300):
        keys, change = [*first], draw.choice(("none",) * 6 + ("other", "fewer", "order", "new"))
        if change == "other":
            keys[draw.randrange(len(keys))] = "another"
        elif change == "fewer":
            keys = keys[: draw.randrange(len(keys))]
        elif change == "order":
            draw.shuffle(keys)
        elif change == "new":
            keys = first = draw.sample(names, draw.choice((6, 7, 9, len(names))))
        values = (None, None, True, 1, 1.5, "text", [1], {"a": {}}, [[[1, 2]], [[-0.5, -1.5]], [1]])
        made = [{key: copy.copy(draw.choice(values)) for key in keys} for _ in range(2)]
        packed = msgpack.packb([[one] for one in made])
        told = unpack(packed)
        assert repr(told) == repr([[one] for one in made]), change
        told[0][0]["set"] = told[0][0][keys[-1] if keys else "x"] = 5
        assert repr(told[1][0]) == repr(made[1])


def test_a_key_that_comes_twice_and_a_map_that_ends_early():
    names = [bytes([0xA1, letter]) for letter in b"abcdefgh"]
    whole = bytes([0x88]) + b"".join(name + b"\x01" for name in names)
    twice = bytes([0x88]) + b"".join(name + b"\x01" for name in [*names[:7], names[2]])
    for packed in (twice, whole, twice, whole):
        assert repr(unpack(packed)) == repr(msgpack.unpackb(packed))
    for end in range(1, len(whole)):
        with pytest.raises(Unknown):
            unpack(whole[:end])


def said(unpack, packed):
    """What is unpacked; None if it is refused."""
    try:
        return repr(unpack(packed))
    except Exception:
        return None


def ours(packed, lazy=True):
    return said(lambda packed: unpack(packed, lazy), packed)


@given(st.binary(max_size=80))
def test_any_bytes(packed):
    """What we take msgpack takes, too, and means the same by it."""
    for lazy in (True, False):
        made = ours(packed, lazy)
        assert made is None or made == said(msgpack.unpackb, packed)


@each("value", ["a", "a" * 40, "a" * 300, 1.5, 200, 70_000, 1 << 40, -70_000, [0, 0], {"a": 0}])
def test_a_value_that_ends_too_early(value):
    """Whatever lies behind the end."""
    packed = msgpack.packb(value)
    for cut in range(len(packed)):
        for lazy in (True, False):
            assert ours(packed[:cut], lazy) is None


@examples(15)
@given(tops(), single, st.data())
def test_damaged_results(top, single, data):
    packed = bytearray(msgpack.packb([[{"outputs": {"top_logprobs": top}}]], use_single_float=single))
    for cut in range(len(packed)):
        assert ours(bytes(packed[:cut])) is None
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    made = ours(bytes(packed))
    assert made is None or made == said(msgpack.unpackb, bytes(packed))


def lazily(top, single=False, key="top_logprobs"):
    """As a result's log-probabilities come out of a message."""
    return unpack(msgpack.packb({key: top}, use_single_float=single))[key]


ROWS = [[[5, 70000], [6, 7]], [[-0.5, -1.5], [-0.25, -2.5]], [1, 3]]


@each("key", LAZY)
def test_log_probabilities_stay_packed(key):
    assert type(lazily(ROWS, key=key)) is PackedRows
    assert type(lazily(ROWS, key="logprobs")) is list
    odd = [[[1.5]], [[0.5]], [1]], [[[1]], [[1]], [1]], [[[1]], [[None]], [1]]
    for other in (None, [], ROWS[:2], [*ROWS, []], *odd):
        made = lazily(other, key=key)
        assert made == other
        assert type(made) is type(other)


def test_they_are_a_sequence_for_whoever_looks():
    made = lazily(ROWS)
    assert isinstance(made, Sequence)
    assert (len(made), bool(made)) == (3, True)
    assert made[0] is made[0]
    assert (made[-1], made[:2], [*made], [*reversed(made)]) == ([1, 3], ROWS[:2], ROWS, ROWS[::-1])
    assert made == ROWS
    assert made == lazily(ROWS)
    assert made != ROWS[:2]
    assert (made < ROWS, made <= ROWS, made > ROWS, made >= ROWS) == (False, True, False, True)
    assert ([1, 3] in made, made.index([1, 3]), repr(made)) == (True, 2, repr(ROWS))
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), list(made)):
        assert (type(copied), copied) == (list, ROWS)
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    with pytest.raises(TypeError, match="item assignment"):
        made[2] = [9, 9]


def built(rows, most, texts):
    told = []
    for build in (lambda: chat(rows, most, texts), lambda: completion(rows, most)):
        try:
            made = build()
            told.append(made and made.json(STYLE))
        except Unknown as error:
            told.append(f"left: {error}")
    return told


@st.composite
def uneven(draw):
    """Rows of ids, of scores, and ranks: as many of each, and as long, as it comes."""
    ids = draw(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=5))
    scores = draw(st.lists(st.lists(st.floats(-30, 0, width=32), max_size=8), max_size=5))
    return [ids, scores, draw(st.lists(st.integers(0, 9), max_size=5))]


@examples(50)
@given(st.one_of(tops(), uneven()), columns, st.booleans(), single, st.booleans())
@example([[[1] * 8, [2]], [[-0.5], [-0.25]], [1, 1]], 9, True, True, False)
@example([[[1], [2], [3]], [[-0.5]] * 3, [1]], 9, True, True, False)
def test_what_is_built_of_them_is_what_is_built_of_lists(top, most, texts, single, looked_at):
    """What has no partner is left out, and nothing else is shown in its place."""
    made, plain = lazily(top, single), msgpack.unpackb(msgpack.packb(top, use_single_float=single))
    if looked_at:
        list(made)
    assert built(made, most, texts) == built(plain, most, texts)


@each("build", [chat, completion])
def test_rows_that_fastdeploy_has_to_see(build):
    for top, text in (
        ([[[0], []], [[-0.5], []], [1, 1]], "empty"),
        ([[[1 << 40]], [[-0.5]], [1]], "out of range"),
        ([[[-1]], [[-0.5]], [1]], "out of range"),
    ):
        made = lazily(top)
        assert type(made) is PackedRows
        with pytest.raises(Unknown, match=text):
            build(made, 5)


def test_what_changed_after_it_was_looked_at_is_what_is_written():
    made = lazily(ROWS)
    made[1][0][0] = -9.5
    made[0][0][0] = made[0][0][1] = made[0][1][0] = made[0][1][1] = 0
    assert '"logprob":-9.5' in chat(made, 5).json(STYLE)


def test_nothing_is_there_for_the_collector():
    message = msgpack.packb([{"top_logprobs": ROWS, "draft_top_logprobs": ROWS}] * 500)
    gc.collect()
    before = len(gc.get_objects())
    made = unpack(message)
    assert len(gc.get_objects()) - before <= 2 * len(made) + 10  # a map each, and none within
    assert not gc.is_tracked(made[0]["top_logprobs"])


@pytest.fixture
def stand_in():
    return unpacking.UnpackingMsgpack(msgpack)


@each(
    "packed, reason",
    [
        (msgpack.packb([msgpack.ExtType(5, b"x")]), "something else"),
        (msgpack.packb({"x": b"bytes"}), "something else"),
        (msgpack.packb([msgpack.Timestamp(5)]), "something else"),
        (b"\x91" * 100 + b"\xc0", "levels"),
        *((one, "") for one in (b"", b"\xc0\xc0", b"\x92\xc0", b"\x81\x01\x02", b"\xa1\xff", b"\xc1")),
        (b"\xdd\xff\xff\xff\xff\x01", ""),
    ],
)
def test_what_is_not_known_or_refused_is_msgpacks(stand_in, packed, reason):
    forget()
    outcomes = []
    for unpackb in (msgpack.unpackb, stand_in.unpackb):
        try:
            outcomes.append(unpackb(packed))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    ((told, count),) = noted().items()
    assert (reason in told, count) == (True, 1)


def test_options_and_the_rest_are_msgpacks(stand_in):
    assert stand_in.unpackb(msgpack.packb(["x"]), raw=True) == [b"x"]
    assert stand_in.unpackb(memoryview(msgpack.packb([1]))) == [1]
    assert stand_in.packb is msgpack.packb


class Manager:
    """Restates what of FastDeploy's dispatcher matters here."""

    async def _dispatch_batch_responses(self):
        while self.running:
            raw_data = await self.pull_client.read()
            msgpack.unpackb(raw_data[-1])


def utils(manager=Manager, **more):
    return SimpleNamespace(DealerConnectionManager=manager, msgpack=msgpack, **more)


def test_the_dispatchers_msgpack_is_ours():
    module = utils()
    restore = unpacking.install(module)
    assert type(module.msgpack.unpackb(msgpack.packb({"top_logprobs": ROWS}))["top_logprobs"]) is PackedRows
    restore()
    assert module.msgpack is msgpack
    other = utils()
    other.msgpack = SimpleNamespace(unpackb=msgpack.unpackb)
    for module in (utils(type("None", (), {})), other):
        before = module.msgpack
        with pytest.raises(NotPlain, match="another way"):
            unpacking.install(module)
        assert module.msgpack is before


@pytest.mark.falls_back
def test_a_failure_of_ours_is_msgpacks_and_for_good_after_three(monkeypatch):
    calls = []

    def fails(packed):
        calls.append(packed)
        raise KeyError("in a test")

    monkeypatch.setattr(unpacking, "unpack", fails)
    ours, packed = unpacking.UnpackingMsgpack(msgpack), msgpack.packb([[{"a": 1}]])
    assert [ours.unpackb(packed) for _ in range(5)] == [[[{"a": 1}]]] * 5
    assert len(calls) == 3


@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(monkeypatch):
    unpack = TwoOfThree(unpacking.unpack)
    monkeypatch.setattr(unpacking, "unpack", unpack)
    ours, packed = unpacking.UnpackingMsgpack(msgpack), msgpack.packb([[{"a": 1}]])
    assert [ours.unpackb(packed) for _ in range(12)] == [[[{"a": 1}]]] * 12
    assert unpack.calls == 12
