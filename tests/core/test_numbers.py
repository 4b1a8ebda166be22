"""Numbers of other kinds: of every width and framework, out of range, or none at all.

What can be converted comes out as the same number; everything else is refused by the argument's name.
"""

import contextlib
import io
import math

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc._core import host_flag, host_input, step_from_tensors
from fd_postproc.support import checks
from tests.lib.frameworks import FRAMEWORKS, made
from tests.lib.rows import each

SCORES = [[-0.5, -2.0]]


def step(**words):
    given = {"counts": [1], "ids": [[7, 8]], "scores": SCORES, "ranks": [1], **words}
    return fp.Step.from_arrays("spec_topk", **given)


def test_an_id_of_any_integer_type():
    for number in np.int32(8002), np.uint64(8002), np.array(8002), np.int64(8002):
        assert queues.locate("topk", number) == queues.locate("topk", 8002)
        assert type(queues.locate("topk", key=number)) is int


def test_a_key_is_spelled_as_ipcs_does(queue_key):
    """With its highest bit set a key is negative as a signed number, which no table of ipcs holds."""
    key = queue_key - (1 << 31)
    spelled = queues.key_text(key)
    assert spelled == f"0x{key + (1 << 32):08x}"
    receiver = fp.Receiver("plain", key=int(spelled, 0))
    try:
        sender = fp.Sender("plain", key=key)
        assert (receiver.key, sender.key, sender.msqid) == (key, key, receiver.msqid)
        assert all(f"key {spelled}" in repr(one) for one in (receiver, sender))
    finally:
        receiver.remove()
    with pytest.raises(fp.QueueRemoved, match=f"key {spelled}"):
        sender.send_arrays([1], [5])


def test_times(queue_key):
    with fp.Receiver("plain", key=queue_key) as receiver:
        for timeout in 0.0, np.float32(0.001), np.int64(0), np.array(0.001):
            assert receiver.receive(timeout) is None
            assert ops.flush(timeout)
        for call in receiver.receive, ops.flush:
            for timeout in -1e-9, -1, -math.inf, math.nan, -(10**400):
                with pytest.raises(ValueError, match=r"timeout = .* is not a number of seconds from 0"):
                    call(timeout)
    for value, number in (0, 0.0), (-0.0, 0.0), (np.float32(0.5), 0.5), (10**400, math.inf):
        assert checks.seconds(value) == number


@each(
    "words, error, text",
    [
        ({"scores": [[1e300, 0.0]]}, ValueError, r"scores holds 1e\+300, which does not fit float32"),
        ({"scores": [["-0.5", "1"]]}, TypeError, "scores holds strings, not floats"),
        ({"scores": [[1j, 0]]}, TypeError, "scores holds complex numbers, not floats"),
        ({"scores": [[None, 0]]}, TypeError, "scores holds None"),
        ({"scores": [[0.5, 0.5], [0.5]]}, ValueError, "scores is not a regular array: its rows"),
        ({"scores": [[10**400, 0]]}, ValueError, "scores holds 1000"),
        ({"ids": [[10**30, 0]]}, ValueError, "ids holds 1000000000000000000000000000000, which"),
        ({"ids": [[1 << 63, 0]]}, ValueError, "ids holds 9223372036854775808, which does not fit 32 bits"),
        ({"ids": [[7.0, 8.0]]}, TypeError, r"ids holds 7\.0 \(float\), not integers"),
        ({"ids": [["7", "8"]]}, TypeError, "ids holds strings, not integers"),
        ({"ids": 7}, TypeError, r"ids is 7 \(int\)"),
        ({"counts": [True]}, TypeError, "counts holds booleans, not integers"),
        ({"ranks": [1.5]}, TypeError, r"ranks holds 1\.5 \(float\), not integers"),
        ({"flag": 3.9}, TypeError, "flag must be a whole number, not 3.9"),
        ({"stop_flag": 1.5}, TypeError, "stop_flag must be a whole number, not 1.5"),
    ],
)
def test_numbers_that_would_come_out_as_others(words, error, text):
    with pytest.raises(error, match=text):
        step(**words)


def test_scores_of_any_width():
    for dtype in np.float16, np.float64, np.int8:
        assert (
            step(scores=np.array(SCORES).astype(dtype)).scores.tolist()
            == np.array(SCORES).astype(dtype).tolist()
        )
    assert step(scores=[[0.0, -np.inf]]).scores.tolist() == [[0.0, -np.inf]]
    assert step(flag=np.int64(4), stop_flag=np.int8(-1)).stop_flag == -1


def test_an_index_of_any_integer_type():
    made_step = step()
    assert made_step.token_ids(np.int64(0)) == made_step.token_ids(0)
    for call in made_step.token_ids, made_step.logprobs:
        with pytest.raises(IndexError, match="no request 1180591620717411303424: it has 1,"):
            call(1 << 70)
        with pytest.raises(TypeError, match="index of a request must be a whole number, not 'a'"):
            call("a")
    view = made_step.logprobs(0)
    assert view.slice_columns(-(1 << 70), 1 << 70) == view
    with pytest.raises(TypeError, match=r"must be a whole number or None, not 1\.5"):
        view.slice_rows(1.5, None)


def test_a_payload_of_numbers():
    payload = fp.encode(step())
    words = np.frombuffer(payload, np.int32)
    assert fp.decode(words, "spec_topk", mtype=np.int64(1)).ids.tolist() == [[7, 8]]
    with pytest.raises(TypeError, match="payload must be bytes, not a ndarray of floats"):
        fp.decode(words.astype(float), "spec_topk")
    with pytest.raises(ValueError, match="payload is a ndarray that is not contiguous"):
        fp.decode(words[::2], "spec_topk")
    with pytest.raises(ValueError, match="payload is a memoryview that is not contiguous"):
        fp.decode(memoryview(payload)[::2], "spec_topk")
    with pytest.raises(TypeError, match="payload must be bytes-like, not str"):
        fp.decode("text", "spec_topk")
    for mtype in None, "1", 1.0:
        with pytest.raises(TypeError, match="mtype must be a whole number, not"):
            fp.decode(payload, "spec_topk", mtype=mtype)


@each("channel", ["plain", "spec"])
@each("batch", [1, 2, 5, 144, 200])
def test_a_message_of_another_channel_is_no_step(channel, batch):
    """Its batch lies where the flag of ``spec_topk`` is, and its tokens where that has batch and counts."""
    other = fp.Step.from_arrays(channel, [1] * batch, [1] + [0] * (batch - 1))
    payload = fp.encode(other).ljust(fp._core.payload_size(channel), b"\0")
    with pytest.raises(fp.MalformedMessage, match=f"message flag {batch}; .* another channel"):
        fp.decode(payload, "spec_topk")


@pytest.fixture(params=[FRAMEWORKS["paddle"], FRAMEWORKS["torch"]])
def tensors(request):
    return made(request.param)


@pytest.fixture
def compact(ops_queue, monkeypatch):
    """A function that takes the only step of ``topk``; it came in a frame, which needs no raised limits."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")

    def take():
        payload, mtype = ops_queue.take("topk")
        return fp.decode(payload, "topk", mtype=mtype)

    return take


def cast(tensors, array, dtype):
    tensor = tensors.tensor(np.asarray(array, np.float32))
    return tensor.astype(dtype) if hasattr(tensors, "paddle") else tensor.to(getattr(tensors.torch, dtype))


@each("dtype", ["bfloat16", "float16", "float64"])
def test_scores_of_another_width(tensors, dtype, compact):
    """Paddle hands out bfloat16 as 16-bit integers: 0.5 became 16128.0."""
    scores = cast(tensors, SCORES, dtype)
    assert step(scores=scores).scores.tolist() == SCORES
    assert step(scores=[cast(tensors, SCORES[0], dtype)]).scores.tolist() == SCORES
    floats = cast(tensors, [[7.0, 8.0]], dtype)
    with pytest.raises(TypeError, match=f"x has dtype {dtype}, not integers"):
        host_input(floats, "x", "int64")
    with pytest.raises(TypeError, match=r"ids holds .*, not integers"):
        step(ids=floats)
    ids, flag = tensors.tensor(np.array([[7, 8]])), np.array([True])
    ops.save_output_topk(ids[:, :1], ids, scores, np.array([1]), flag, np.zeros(1, np.int32), 0)
    assert compact().scores.tolist() == SCORES


@pytest.fixture
def torch():
    return made(FRAMEWORKS["torch"].values[0]).torch


def hollow(torch):
    """Tensors whose address is not where their numbers are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    cleared = torch.ones(3)
    cleared.untyped_storage().resize_(0)
    with contextlib.redirect_stderr(io.StringIO()):
        fake = FakeTensorMode().from_tensor(torch.ones(3))
    parts = [torch.ones(2), torch.ones(3)]
    return {
        "meta tensor": torch.empty(3, device="meta"),
        "fake tensor": fake,
        "tensor of layout sparse_coo": torch.eye(3).to_sparse(),
        "nested tensor": torch.nested.nested_tensor(parts),
        "tensor without memory: its storage was resized": cleared,
    }


@pytest.mark.framework
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_without_numbers(torch):
    for what, tensor in hollow(torch).items():
        for call in (
            lambda tensor: host_input(tensor, "scores", "float32"),
            lambda tensor: step(scores=tensor),
            lambda tensor: host_flag(tensor, "scores"),
            lambda tensor: ops.get_output_topk(
                np.zeros(10754, int), tensor, np.zeros(512, int), 20, 0, False
            ),
        ):
            with pytest.raises(ValueError, match=f"scores is a {what}"):
                call(tensor)


@pytest.mark.framework
def test_a_negative_bit_view_has_the_other_sign(torch, compact):
    assert step(scores=torch.tensor(SCORES, requires_grad=True)).scores.tolist() == SCORES
    scores = torch.complex(torch.zeros(1, 2), -torch.tensor(SCORES)).conj().imag
    assert scores.is_neg()
    assert scores.tolist() == SCORES
    assert step(scores=scores).scores.tolist() == SCORES
    contiguous = torch._neg_view(-torch.tensor(SCORES))
    assert contiguous.is_contiguous()
    for view in scores, contiguous:
        ids, flag = np.array([[7, 8]]), np.array([True])
        ops.save_output_topk(ids[:, :1], ids, view, np.array([1]), flag, np.zeros(1, np.int32), 0)
        assert compact().scores.tolist() == SCORES
    with pytest.raises(ValueError, match="x is a negative-bit view, which cannot be written to"):
        ops.get_output(torch._neg_view(torch.zeros(514, dtype=torch.int64)), 0, False)


@pytest.mark.framework
def test_paddle_tensors_without_numbers():
    """numpy() of a sparse one ends the process."""
    paddle = made(FRAMEWORKS["paddle"].values[0]).paddle
    cleared = paddle.to_tensor([1.0, 2.0])
    cleared._clear_data()
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
    for tensor, what in (cleared, "tensor without memory: it was cleared"), (sparse, "sparse tensor"):
        for call in (
            lambda tensor: host_input(tensor, "scores", "float32"),
            lambda tensor: step(scores=tensor),
            lambda tensor: host_flag(tensor, "scores"),
        ):
            with pytest.raises(ValueError, match=f"scores is a {what}"):
                call(tensor)


@each("channel, places", [("spec_topk", (0, 1, 2, 4, 515, 516, 515 + 126)), ("plain", (3,))])
@each("wide", [(1 << 32) + 5, 1 << 31, -(1 << 31) - 1, -(1 << 40), (1 << 63) - 1])
def test_wide_numbers_of_a_get_ops_tensors(channel, places, wide):
    """They fit no message: refused, not wrapped."""

    def tensors():
        if channel == "plain":
            return [np.array([1, 2, 5, 6, *[0] * 510])[:, None]]
        tokens = np.zeros((512 * 126 + 515, 1), np.int64)
        tokens[:5, 0] = 1, 3 | 2 << 8, 2, 1, 1
        return [tokens, np.zeros((512 * 126, 1), np.float32), np.zeros(3072, np.int64)]

    assert step_from_tensors(channel, *tensors()).counts == [1, 1]
    for place in places:
        given = tensors()
        given[0][place] = wide
        with pytest.raises(fp.MalformedMessage, match=str(wide)):
            step_from_tensors(channel, *given)
    if channel == "spec_topk":
        given = tensors()
        given[2][6] = wide
        with pytest.raises(fp.MalformedMessage, match=f"hold {wide}, which does not fit 32 bits"):
            step_from_tensors(channel, *given)


@each(
    "channel, header, sizes",
    [
        ("plain", [1, 2], (4,)),
        ("topk", [1, 2 | 3 << 16], (8, 6, 2)),
        ("spec", [1, 2, 0, 5], (2 + 256 + 6 + 5,)),
        ("spec_topk", [1, 3 | 2 << 8, 2, 0, 5], (515 + 126 + 4 * 21 + 2, 126 + 4 * 21 + 2, 11)),
    ],
)
def test_a_get_ops_tensors_hold_all_that_their_header_claims(channel, header, sizes):
    """They may end behind the last live row, and not before."""
    tensors = [np.zeros(size, dtype) for size, dtype in zip(sizes, ("q", "f", "q"), strict=False)]
    tensors[0][: len(header)] = header
    assert step_from_tensors(channel, *tensors).batch == 2
    for short in range(len(tensors)):
        given = [tensor[:-1] if k == short else tensor for k, tensor in enumerate(tensors)]
        with pytest.raises(fp.MalformedMessage, match="at least"):
            step_from_tensors(channel, *given)
