"""Random steps: what travels through encode and decode, and that C and the reference do the same."""

import numpy as np
import sysv_ipc
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fd_postproc as fp
from tests import reference
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import ReferenceStep

SIZES = (7, 3, 2, 5), (4, 1, 1, 4), (1, 0, 1, 1), (3, 6, 5, 2), (512, 20, 6, 256), (128, 5, 6)
LAYOUTS = [fp.Layout(*sizes) for sizes in SIZES]
CHANNELS = ("plain", "topk", "spec", "spec_topk")
MTYPES = {"packed": 1, "legacy": 1, "compact": 2}
DIALECTS = tuple(MTYPES)
MOST_REQUESTS = 9  # of a drawn step; the recorded messages have full batches

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
NANS, INFINITIES, ZERO = [0x7FC00000, 0x7F800001, 0xFFC12345], [0x7F800000, 0xFF800000], [0x80000000, 1]
BITS = st.integers(0, (1 << 32) - 1) | st.sampled_from(NANS + INFINITIES + ZERO)


@st.composite
def steps(draw, channel, layout):
    """A step that the layout can carry."""
    slots = layout.spec_batch if channel == "spec" else layout.max_batch
    cols = draw(st.integers(1, layout.top_k + 1)) if channel.endswith("topk") else 1
    codes = st.sampled_from([-1, -3, -9, -(1 << 31)])
    counts_of_a_slot = st.integers(0, layout.max_draft) if channel.startswith("spec") else st.just(1)
    counts = draw(st.lists(counts_of_a_slot | codes, max_size=min(slots, MOST_REQUESTS)))
    rows = sum(count for count in counts if count > 0)
    ids = draw(arrays(np.int32, (rows, cols), elements=INT32))
    if not channel.startswith("spec"):
        ids[:, 0] &= 0x7FFFFFFF  # a negative token would be a code
    keywords = {"stop_flag": draw(INT32), "flag": draw(st.sampled_from([0, 3, 4])), "as_recorded": True}
    if not channel.endswith("topk"):
        return fp.Step.from_arrays(channel, counts, ids, **keywords)
    scores = draw(arrays(np.uint32, (rows, cols), elements=BITS)).view(np.float32)
    ranks = draw(arrays(np.int32, rows, elements=INT32))
    return fp.Step.from_arrays(channel, counts, ids, scores, ranks, **keywords)


CASES = st.tuples(st.sampled_from(CHANNELS), st.sampled_from(LAYOUTS)).flatmap(
    lambda case: st.tuples(st.just(case[1]), steps(*case))
)


def bits(scores):
    return np.asarray(scores).view(np.uint32)


def quiet(step):
    """The step with its signalling NaNs made quiet, as they become in a Python float."""
    if step.scores is None:
        return step
    cells = bits(step.scores)
    nan = (cells & 0x7F800000 == 0x7F800000) & (cells & 0x007FFFFF != 0)
    scores = np.where(nan, cells | 0x00400000, cells).astype(np.uint32).view(np.float32)
    words = {"flag": step.flag, "stop_flag": step.stop_flag, "as_recorded": True}
    return fp.Step.from_arrays(step.channel, step.counts, step.ids, scores, step.ranks, **words)


@examples(30)
@given(case=CASES, dialect=st.sampled_from(DIALECTS))
def test_everything_travels(case, dialect):
    layout, step = case
    payload = fp.encode(step, dialect, layout=layout)
    again = fp.decode(payload, step.channel, mtype=MTYPES[dialect], layout=layout)
    sent = ("channel", "flag", "stop_flag", "batch", "rows", "counts")
    assert [getattr(again, name) for name in sent] == [getattr(step, name) for name in sent]
    assert again.offsets.tolist() == step.offsets.tolist()
    assert again.seq == (0 if dialect == "compact" else None)
    if step.scores is None:
        assert again == step
        return
    assert again.dialect == dialect
    assert again.cols == (layout.top_k + 1 if dialect == "legacy" else step.cols)
    ids, cells, cols = np.asarray(again.ids), bits(again.scores), step.cols
    np.testing.assert_array_equal(ids[:, :cols], step.ids)
    np.testing.assert_array_equal(cells[:, :cols], bits(step.scores))
    np.testing.assert_array_equal(again.ranks, step.ranks)
    assert (ids[:, cols:] == -1).all()  # what a legacy sender fills up with
    assert (cells[:, cols:] == 0).all()  # 0.0


@examples(30)
@given(case=CASES, dialect=st.sampled_from(DIALECTS))
def test_the_reference_reads_and_writes_the_same(decode_both, case, dialect):
    layout, step = case[0], quiet(case[1])
    payload = fp.encode(step, dialect, layout=layout)
    assert reference.encode(ReferenceStep.from_step(step), dialect, layout=layout) == payload
    if dialect != "compact":
        assert reference.claimed(payload, step.channel, layout=layout) == len(payload)
    decode_both(payload, step.channel, mtype=MTYPES[dialect], layout=layout)


@examples(30)
@given(case=CASES, other=st.sampled_from(LAYOUTS), dialect=st.sampled_from(DIALECTS))
def test_a_layout_that_is_too_small(case, other, dialect):
    step = quiet(case[1])

    def attempt(encode, step):
        try:
            return encode(step, dialect, layout=other)
        except ValueError as error:
            return str(error)

    assert attempt(fp.encode, step) == attempt(reference.encode, ReferenceStep.from_step(step))


def meaningful(step, layout, arrays):
    """The cells of a get op's tensors that mean something: packed messages have noise besides."""
    if step.channel == "spec":  # the packed op copies cells behind the counts, too
        (tokens,) = arrays
        depth, begin = layout.max_draft, 2 + layout.spec_batch
        rows = [tokens[begin + depth * i :][: max(n, 0)] for i, n in enumerate(step.counts)]
        return [tokens[: 2 + step.batch], *rows]
    if step.channel == "topk":  # scores and rank of a code mean nothing
        tokens, scores, ranks = arrays
        live, cells = np.array(step.counts, int) == 1, scores[: step.batch * step.cols]
        return [tokens, cells.reshape(step.batch, step.cols)[live], ranks[: step.batch][live]]
    return arrays


@each("layout", [fp.Layout(64, 3, 2, 60), LAYOUTS[1]])
@each("channel", CHANNELS)
def test_tensors_are_filled_alike(channel, layout, queue_keys):
    """The C code's way into a get op's tensors, through a real queue; a frame as the packed message would."""
    queue_key = queue_keys()
    queue = sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, max_message_size=8192)
    receiver = fp.Receiver(channel, key=queue_key, layout=layout)
    slots = layout.spec_batch if channel == "spec" else layout.max_batch
    depth = layout.max_draft if channel.startswith("spec") else 1
    cells = slots * depth * (layout.top_k + 1)
    size = reference.payload_size(channel, layout)

    def empty():
        tokens = np.full(3 + slots + cells, 2, np.int64)
        logprobs = np.zeros(cells, np.float32), np.zeros(slots * depth, np.int64)
        return (tokens, *logprobs) if channel.endswith("topk") else (tokens,)

    @examples(12)
    @given(
        step=steps(channel, layout),
        dialect=st.sampled_from(DIALECTS),
        columns=st.integers(1, layout.top_k + 3),
        tail=st.integers(0, 1 << 10),
    )
    def check(step, dialect, columns, tail):
        step = quiet(step)
        message = fp.encode(step, dialect, layout=layout)
        frame = dialect == "compact" and len(message) <= size  # else it would come in pieces
        payload = fp.encode(step, "packed" if dialect == "compact" else dialect, layout=layout)
        payload += b"\x77" * min(tail, size - len(payload))  # what an earlier message left
        queue.send(message if frame else payload, type=1 + frame)
        fast, dull = empty(), empty()
        addresses = [array.ctypes.data for array in fast]
        assert receiver._receive_into(*(*addresses, 0, 0)[:3], columns, False)
        reference.fill(payload, channel, *dull, columns=columns, layout=layout)
        if frame:
            fast, dull = (meaningful(step, layout, arrays) for arrays in (fast, dull))
        for ours, theirs in zip(fast, dull, strict=True):
            assert ours.tobytes() == theirs.tobytes()

    check()
