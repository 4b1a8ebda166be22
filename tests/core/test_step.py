"""Step and Logprobs as a user meets them."""

import gc
import io
import pickle

import numpy as np
import pytest

import fd_postproc as fp
from tests.lib.rows import each
from tests.lib.sending import pipe

NAN = float("nan")


@pytest.fixture
def step():
    """Four requests: two tokens, none, a code, one token; three columns."""
    ids = [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    scores = [[-0.5, -1.5, -2.5], [-0.25, NAN, float("-inf")], [0.0, -1.0, -2.0]]
    return fp.Step.from_arrays(
        "spec_topk", [2, 0, -9, 1], ids, scores, [1, 7, 3], flag=4, stop_flag=-1, as_recorded=True
    )


def test_what_it_holds(step):
    assert (step.channel, step.dialect, step.flag, step.stop_flag) == ("spec_topk", None, 4, -1)
    assert (step.batch, step.rows, step.cols, step.seq) == (4, 3, 3, None)
    assert step.counts == [2, 0, -9, 1]
    assert [step.token_ids(i) for i in range(4)] == [[11, 21], [], [], [31]]
    for i in -1, 4, 1 << 40:
        for method in step.token_ids, step.logprobs:
            with pytest.raises(IndexError, match=f"no request {i}: it has 4, counted from 0"):
                method(i)
    with pytest.raises(TypeError, match=r"not dict; Step\.from_arrays"):
        fp.encode({})
    assert repr(step) == "<Step spec_topk draft: 4 requests, 3 tokens, 3 columns>"
    for kind in fp.Step, fp.Logprobs:
        with pytest.raises(TypeError, match=r"decode|logprobs"):
            kind()


def test_arrays_are_views(step):
    assert step.offsets.tolist() == [0, 2, 2, 2, 3]
    assert step.ids.tolist() == [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    assert step.ranks.tolist() == [1, 7, 3]
    ids = np.asarray(step.ids)
    assert (ids.dtype, ids.shape, ids.flags.owndata) == (np.int32, (3, 3), False)
    assert np.shares_memory(ids, np.asarray(step.ids))
    assert np.asarray(step.scores).dtype == np.float32
    assert np.asarray(step.ids).ctypes.data == np.asarray(step.ids).ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        ids[0, 0] = 5


def test_arrays_keep_the_step_alive(step):
    payload = fp.encode(step)
    ids = np.asarray(fp.decode(payload, "spec_topk").ids)
    view = fp.decode(payload, "spec_topk").logprobs(0)
    gc.collect()
    for _ in range(100):  # memory that were freed would be used again
        fp.decode(payload[:12] + bytes(len(payload) - 12), "spec_topk").ids.tolist()
    assert ids.tolist() == [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    assert view.sampled_token_ranks == [1, 7]


def test_arrays_without_rows():
    step = fp.Step.from_arrays("spec_topk", [0, -3], np.empty((0, 5)), np.empty((0, 5)), [])
    assert np.asarray(step.ids).shape == (0, 5)
    assert np.asarray(step.scores).shape == (0, 5)
    assert np.asarray(step.ranks).shape == (0,)
    assert step.tolists() == ([[], []], [[], []], [[], []])
    assert fp.decode(fp.encode(step), "spec_topk") == step
    empty = fp.Step.from_arrays("spec", [], [])
    assert (empty.batch, empty.counts, empty.tolists()) == (0, [], ([], None, None))


def test_buffers_in_every_form(step):
    """memoryview asks for everything; bytes() and a cast ask for less."""
    assert bytes(step.ids) == np.asarray(step.ids).tobytes()
    assert memoryview(step.ids).cast("B").nbytes == 36
    assert step.ids.c_contiguous
    assert step.ids.readonly
    assert step.offsets.format == "i"
    with pytest.raises(TypeError):
        step.ids[0, 0] = 1
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(bytes(36)).readinto(step.ids.obj)


def test_nested_lists(step):
    ids, scores, ranks = step.tolists()
    assert ids == [[[11, 12, 13], [21, 22, 23]], [], [], [[31, 32, 33]]]
    assert scores[0][0] == [-0.5, -1.5, -2.5]
    assert np.isnan(scores[0][1][1])
    assert scores[0][1][2] == float("-inf")
    assert scores[1:] == [[], [], [[0.0, -1.0, -2.0]]]
    assert ranks == [[1, 7], [], [], [3]]


def test_channels_without_logprobs():
    step = fp.Step.from_arrays("spec", [2, 1], [1, 2, 3])
    assert step.scores is None
    assert step.ranks is None
    assert step.cols == 1
    assert step.flag == 0
    assert step.tolists() == ([[[1], [2]], [[3]]], None, None)
    with pytest.raises(ValueError, match="channel 'spec' carries no logprobs"):
        step.logprobs(0)


def test_logprobs_view(step):
    view = step.logprobs(0)
    assert (len(view), view.rows, view.cols) == (3, 2, 3)
    assert view.logprob_token_ids == [[11, 12, 13], [21, 22, 23]]
    assert view.logprobs[0] == [-0.5, -1.5, -2.5]
    assert view.sampled_token_ranks == [1, 7]
    assert step.logprobs(3).tolists() == ([[31, 32, 33]], [[0.0, -1.0, -2.0]], [3])
    assert step.logprobs(1).tolists() == ([], [], [])
    assert repr(view) == "<Logprobs: 2 tokens, 3 columns>"


def test_logprobs_are_a_sequence_of_three(step):
    """As the named tuple is that FastDeploy has in their place."""
    view = step.logprobs(3)
    expected = view.tolists()
    ids, scores, ranks = view
    assert (ids, scores, ranks) == expected == tuple(view) == view
    assert [view[k] for k in range(-3, 3)] == [*expected, *expected]
    assert view[:2] == expected[:2]
    assert list(reversed(view)) == [*reversed(expected)]
    assert ranks in view
    for place, error in ((3, IndexError), (-4, IndexError), ("logprobs", TypeError)):
        with pytest.raises(error):
            view[place]


@each("make", [np.asarray, np.array, lambda view: np.asarray(view, dtype=object)])
def test_logprobs_are_no_array(step, make):
    with pytest.raises(
        TypeError, match=r"give NumPy one of its logprob_token_ids, logprobs and .* Step\.ids"
    ):
        make(step.logprobs(0))
    assert np.asarray(step.logprobs(0).logprobs).shape == (2, 3)


@each("make", [np.asarray, np.array, lambda one: np.asarray(one, dtype=object)])
def test_a_step_is_no_array(step, make):
    with pytest.raises(TypeError, match=r"give NumPy one of its counts, .* np\.asarray\(step\.ids\)"):
        make(step)


@each("dtype", [np.float32, np.float16])
def test_the_rounding_of_a_softmax_is_no_impossible_score(dtype):
    """The logarithm of the least number above 1, of which a probability in float32 or float16 may consist."""
    score = float(np.log(np.float64(np.nextafter(dtype(1), dtype(2)))))
    assert 1e-7 < score < 1e-3
    step = fp.Step.from_arrays("topk", [1], [[5]], [[score]], [1])
    assert np.asarray(step.scores)[0, 0] == np.float32(score)
    with pytest.raises(ValueError, match=r"is 0.0078125: a log-probability is at most 0, or 0.001"):
        fp.Step.from_arrays("topk", [1], [[5]], [[2**-7]], [1])


IMPOSSIBLE = [
    ({"scores": [[-0.5, 0.25]]}, r"scores\[0, 1\] is 0.25: a log-probability is at most 0"),
    ({"scores": [[NAN, -1.0]]}, r"scores\[0, 0\] is nan"),
    ({"scores": [[float("inf"), -1.0]]}, r"scores\[0, 0\] is inf"),
    ({"ranks": [0]}, r"ranks\[0\] is 0: the likeliest token has rank 1"),
    ({"ranks": [-1]}, r"ranks\[0\] is -1"),
    ({"counts": [1, -2]}, r"counts\[1\] is -2: .* -1 \(no token\), -3 \(recovery stop\), -9"),
    ({"stop_flag": -2}, r"stop_flag is -2: .*"),
]


@each("values", [[1, 2], [np.int64(1), 2], [np.uint8(1), np.int32(2)]])
def test_arrays_of_objects_are_numbers(values):
    ids = np.array(values, dtype=object)
    scores = np.array([-0.5, np.float32(-1)], dtype=object)
    step = fp.Step.from_arrays("topk", np.array([1, 1], dtype=object), ids, scores, ids)
    assert np.asarray(step.ids).tolist() == [[1], [2]]
    assert np.asarray(step.scores).tolist() == [[-0.5], [-1.0]]
    for wrong, error in ((2**31, ValueError), (2**70, ValueError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="ids holds"):
            fp.Step.from_arrays("plain", [1, 1], np.array([1, wrong], dtype=object))


@each("changes, text", IMPOSSIBLE)
def test_values_that_no_model_gives(changes, text, queue_keys):
    """Refused for people; kept where a recording has them."""
    parts = {"counts": [1, -9], "ids": [[5, 6]], "scores": [[-0.5, float("-inf")]], "ranks": [1], **changes}
    with pipe(queue_keys(), "topk") as (sender, receiver):
        with pytest.raises(ValueError, match=f"{text}.*; as_recorded=True keeps any value"):
            fp.Step.from_arrays("topk", **parts)
        with pytest.raises(ValueError, match=text):
            sender.send_arrays(**parts)
        sender.send_arrays(**parts, as_recorded=True)
        assert receiver.receive(0) == fp.Step.from_arrays("topk", **parts, as_recorded=True)
        assert receiver.receive(0) is None


BOUNDS = [None, -9, -2, -1, 0, 1, 2, 3, 9]


@each("start", BOUNDS)
@each("end", BOUNDS)
def test_slices_are_those_of_lists(step, start, end):
    view = step.logprobs(0)
    ids, _, ranks = view.tolists()
    rows = view.slice_rows(start, end)
    assert rows.logprob_token_ids == ids[start:end]
    assert rows.sampled_token_ranks == ranks[start:end]
    columns = view.slice_columns(start, end)
    assert columns.logprob_token_ids == [row[start:end] for row in ids]
    assert columns.sampled_token_ranks == ranks
    both = view.slice_columns(start, end).slice_rows(1, 2).slice_columns(0, 1)
    assert both.logprob_token_ids == [row[start:end][0:1] for row in ids[1:2]]
    assert pickle.loads(pickle.dumps(columns)) == columns


def test_equality_of_views(step):
    view, again = step.logprobs(0), fp.decode(fp.encode(step), "spec_topk").logprobs(0)
    view.logprob_token_ids[0].append(5)  # a new list each time
    for same in again, view, pickle.loads(pickle.dumps(view)):
        assert view == same  # NaN equals NaN
    assert view.slice_columns(0, 2) == again.slice_columns(0, 2)
    assert view.slice_rows(0, 1) == view.slice_rows(0, 1).tolists()
    for unlike in step.logprobs(3), view.slice_columns(0, 2), ([], [], []), 5, None:
        assert view != unlike
    with pytest.raises(TypeError, match="unhashable"):
        hash(view)


def other(step, **changes):
    parts = {
        "channel": "spec_topk",
        "counts": step.counts,
        "ids": np.array(step.ids),
        "scores": np.array(step.scores),
        "ranks": np.array(step.ranks),
        "flag": 4,
        "stop_flag": -1,
        "as_recorded": True,
    }
    parts.update(changes)
    return fp.Step.from_arrays(**parts)


def test_equality_of_steps(step):
    assert step == other(step)
    assert step == fp.decode(fp.encode(step), "spec_topk")  # how it travelled does not count
    assert step != other(step, flag=3)
    assert step != other(step, stop_flag=1)
    assert step != other(step, counts=[2, 0, -3, 1])
    assert step != other(step, ids=np.array(step.ids) + 1)
    assert step != other(step, scores=np.array(step.scores) - 1)
    assert step != other(step, ranks=[1, 7, 4])
    spec = fp.Step.from_arrays("spec", [1], [5])
    assert spec == fp.Step.from_arrays("spec", [1], [5])
    assert spec != fp.Step.from_arrays("plain", [1], [5])
    assert step != "step"
    with pytest.raises(TypeError, match="unhashable"):
        hash(step)


@each("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(step, protocol):
    copy = pickle.loads(pickle.dumps(step, protocol))
    assert copy == step
    assert copy.dialect is None
    received = fp.decode(fp.encode(step), "spec_topk")
    assert pickle.loads(pickle.dumps(received, protocol)).dialect == "packed"
    spec = fp.Step.from_arrays("spec", [2, -1], [7, 8])
    assert pickle.loads(pickle.dumps(spec, protocol)) == spec
    view = step.logprobs(0)
    assert pickle.loads(pickle.dumps(view, protocol)) == view
    # A view takes its own rows along, not the step.
    assert len(pickle.dumps(view.slice_rows(0, 0))) < len(pickle.dumps(view))


STEP = fp.Step.from_arrays("spec_topk", [2, 0, -9, 1], [[11, 12, 13]] * 3, [[-0.5] * 3] * 3, [1, 7, 3])
PLAIN = fp.Step.from_arrays("plain", [1, 1], [5, 6])
NONE = np.zeros((0, 3))
CODES = [fp.Step.from_arrays(one, [-9], NONE, NONE, []) for one in ("topk", "spec_topk")]
FLAG, COLS, COUNTS, IDS, SCORES, RANKS = 2, 4, 5, 6, 7, 8  # places in a pickle's arguments


def words(*numbers):
    return np.array(numbers, np.int32).tobytes()


UNFIT = "do not fit each other"
DAMAGED = [
    *((STEP, {part: STEP.__reduce__()[1][part][:-4]}, UNFIT) for part in (COUNTS, IDS, SCORES, RANKS)),
    *((STEP, {FLAG: flag}, f"flag {flag}") for flag in (-1, 256, 1 << 30)),
    (PLAIN, {FLAG: 3}, "flag 3 on channel 'plain'"),
    (PLAIN, {COLS: 2, IDS: words(5, 6, 5, 6)}, "2 columns on channel 'plain'"),
    (PLAIN, {IDS: words(5, -2)}, "the sampled token -2 on channel 'plain'"),
    # Without a row any number of columns has the right number of bytes: none.
    *((step, {COLS: cols}, UNFIT) for step in CODES for cols in (0, -1, -5, -(1 << 31))),
    # 4 * 2**32 * 2**30 bytes are none in 64 bits.
    *(
        (STEP, {COLS: cols, COUNTS: words(*counts), IDS: b"", SCORES: b"", RANKS: b""}, UNFIT)
        for counts, cols in (([1 << 30] * 4, 1 << 30), ([1 << 30], 1 << 30), ([1 << 30] * 3, 7))
    ),
    *(
        (STEP.logprobs(0), {0: rows, 1: cols}, f"logprobs of {rows} rows and {cols} columns")
        for rows, cols in ((2, -1), (2, -(1 << 31)), (-1, 3), (-(1 << 31), 0))
    ),
]


@each("whole, changes, text", DAMAGED)
def test_a_damaged_pickle_is_refused(whole, changes, text):
    make, arguments = whole.__reduce__()
    assert make(*arguments) == whole
    with pytest.raises(ValueError, match=text):
        make(*(changes.get(place, one) for place, one in enumerate(arguments)))


def test_an_array_is_not_given_in_another_order(step):
    ask = pytest.importorskip("_testbuffer")
    part = step.ids.obj
    for flags in (ask.PyBUF_F_CONTIGUOUS, ask.PyBUF_F_CONTIGUOUS | ask.PyBUF_FORMAT):
        with pytest.raises(BufferError, match="C order"):
            ask.ndarray(part, getbuf=flags)
    for flags in (ask.PyBUF_C_CONTIGUOUS, ask.PyBUF_ANY_CONTIGUOUS, ask.PyBUF_FULL_RO):
        assert ask.ndarray(part, getbuf=flags | ask.PyBUF_FORMAT).tolist() == step.ids.tolist()


ROW = [[1, 2]]


@each(
    "arguments, text",
    [
        (("spec", [1, 1], [5]), "ids has 1 rows, but counts add up to 2 tokens"),
        (("spec", [1], [[5, 6]]), "channel 'spec' carries 1 column, not 2"),
        (("spec", [1], [5], [0.0]), "carries no scores or ranks"),
        (("spec", [1], [1 << 31]), "ids holds 2147483648, which does not fit 32 bits"),
        (("spec", [1], [0.5]), r"ids holds 0\.5 \(float\), not integers"),
        (("spec", 1, [5]), r"counts is 1 \(int\): give a list"),
        (("spec", [1], "5"), r"ids is '5' \(str\): give a list"),
        (("spec", (one for one in [1]), [5]), r"counts is <generator .*: give a list"),
        (("spec", {0: 1}, [5]), r"counts is \{0: 1\} \(dict\): give a list"),
        (("spec", [[1]], [5]), r"counts has shape \(1, 1\); it must have 1 dimension"),
        (("spec", [-(1 << 31) - 1], []), "counts holds -2147483649"),
        (("spec_topk", [1], np.empty((1, 0)), np.empty((1, 0)), [1]), "ids has no column"),
        (("spec_topk", [1], ROW), "channel 'spec_topk' needs scores and ranks"),
        (("spec_topk", [1], ROW, [[0.5]], [1]), r"scores has shape \(1, 1\), ids \(1, 2\)"),
        (("spec_topk", [1], ROW, [[0.5, 0.5]], [1, 2]), "ranks has 2 elements for 1 rows"),
        (("plain", [1, 0], [5]), "count 0 on channel 'plain'"),
        (("plain", [2], [5, 6]), "count 2 on channel 'plain'"),
        (("topk", [1], [-5], [0.0], [1]), "a sampled token of channel 'topk' is negative"),
        (("speck", [1], [5]), "channel 'speck' is not one of"),
        *(
            (("spec_topk", [1], [5], [0.0], [1], words), text)
            for words, text in (
                ({"flag": 256}, "flag = 256"),
                ({"flag": -1}, "flag = -1"),
                ({"flag": 5}, "flag 5 is not one of 3"),
                ({"stop_flag": 1 << 31}, "stop_flag"),
                ({"weight_version": "\ud800"}, r"weight_version '\\ud800' cannot be written as UTF-8"),
            )
        ),
    ],
)
def test_arrays_that_do_not_fit(arguments, text):
    words = arguments[-1] if isinstance(arguments[-1], dict) else {}
    with pytest.raises((TypeError, ValueError), match=text):
        fp.Step.from_arrays(*(one for one in arguments if one is not words), **words)


def test_arrays_of_any_integer_type_and_stride():
    ids = np.arange(12, dtype=np.uint8).reshape(3, 4)[:, ::2]
    step = fp.Step.from_arrays("spec_topk", np.array([3], np.int64), ids, ids / -2, np.arange(1, 4)[::-1])
    assert step.ids.tolist() == [[0, 2], [4, 6], [8, 10]]
    assert step.ranks.tolist() == [3, 2, 1]
    for channel in "plain", "spec":  # the least token, and no code
        assert fp.Step.from_arrays(channel, [1], [0]).token_ids(0) == [0]


def test_encode_takes_a_step_and_a_dialect(step):
    with pytest.raises(ValueError, match="dialect 'dense' is not one of 'packed', 'legacy', 'compact'"):
        fp.encode(step, "dense")
    with pytest.raises(TypeError):
        fp.encode(None)


def test_decode_takes_any_bytes_like_object(step):
    payload = fp.encode(step)
    for form in (
        bytearray(payload),
        memoryview(payload),
        np.frombuffer(payload, np.int32),
        memoryview(b"?" + payload)[1:],  # not aligned
    ):
        assert fp.decode(form, "spec_topk") == step
