"""The CUDA kernel's body, on the CPU: in whatever order its threads run, it writes the CPU packer's bytes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_emulation import OPS, Call, compiler
from save_cases import CHANNELS, arguments, random_inputs
from search import examples

import fd_postproc as fp
from fd_postproc import reference
from fd_postproc.reference import ReferenceStep

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the kernel body with")

ROLES = {
    "x": "tokens",
    "accept_tokens": "tokens",
    "sampled_token_ids": "tokens",
    "topk_ids": "ids",
    "logprob_token_ids": "ids",
    "logprob_scores": "scores",
    "ranks": "ranks",
    "logprob_ranks": "ranks",
    "accept_num": "counts",
    "token_num_per_batch": "counts",
    "cu_batch_token_offset": "offsets",
    "seq_lens_decoder": "decoded",
    "prompt_lens": "prompts",
    "preempted_idx": "preempted",
    "step_idx": "steps",
}
TWO_DIMENSIONS = ("tokens", "ids", "scores")
LAYOUTS = [fp.GPU, fp.GPU, fp.Layout(128, 5, 6), fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)]
WITH_COUNTS = ["speculate_save_output", "speculate_save_output_topk", "mtp_save_first_token_with_topk"]
WITH_LOGPROBS = [op for op in OPS if "topk" in op]

CASES = {
    "batch": st.integers(0, 12) | st.integers(0, 512) | st.sampled_from([255, 256, 257, 511, 512]),
    "cols": st.integers(1, 21),
    "seed": st.integers(0, 1 << 32),
    "layout": st.sampled_from(LAYOUTS),
    "dialect": st.sampled_from(["packed", "legacy", "compact"]),
    "stop_flag": st.sampled_from([0, 1, -7, 2147483647]),
    "flag": st.sampled_from([0, 3, 4]),
    "skip_prefill": st.booleans(),
}
GRIDS = {
    "blocks": st.sampled_from([0, 1, 2, 3, 7, 64]),
    "threads": st.sampled_from([32, 64, 96, 256, 512]),
    "order": st.integers(0, 1 << 32),
}


def slots(op, layout, dialect):
    return layout.spec_batch if CHANNELS[op] == "spec" and dialect != "compact" else layout.max_batch


def roles_of(inputs):
    """The arrays of a save op by role: one dimension where there is one number per request or row."""
    arrays = {ROLES[name]: value for name, value in inputs.items() if name in ROLES}
    return {role: a if role in TWO_DIMENSIONS else a.reshape(-1) for role, a in arrays.items()}


def strided(rng, array):
    """The same numbers with gaps between them, in another order, or in another integer type."""
    if array.dtype.kind == "i":
        limits = np.iinfo(np.int32)
        fits = array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max)
        array = array.astype(rng.choice([np.int32, np.int64]) if fits else np.int64)
    gaps = [int(rng.integers(1, 4)) for _ in array.shape]
    room = [size * gap + 1 for size, gap in zip(array.shape, gaps, strict=True)]
    order = "F" if rng.random() < 0.5 else "C"
    memory = np.frombuffer(rng.bytes(int(np.prod(room)) * array.itemsize), array.dtype)
    view = memory.copy().reshape(room, order=order)[tuple(slice(None, -1, gap) for gap in gaps)]
    view[...] = array
    return view


def random_call(op, batch, cols, seed, layout, dialect, **numbers):
    rng = np.random.default_rng(seed)
    batch = min(batch, slots(op, layout, dialect))
    inputs = random_inputs(op, batch, min(cols, layout.top_k + 1), seed, layout)
    arrays = roles_of(inputs)
    if rng.random() < 0.7:
        arrays = {role: strided(rng, array) for role, array in arrays.items()}
    seq, sender = (int(n) for n in rng.integers(0, 1 << 64, 2, dtype=np.uint64))
    return Call(op, dialect, layout, arrays, batch, seq=seq, sender=sender, **numbers), inputs


@pytest.mark.parametrize("op", OPS)
def test_the_kernel_writes_what_the_cpu_writes(op):
    """Both packers begin with the same noise, so they have to leave the same bytes alone, too."""

    @examples(30)
    @given(**CASES, **GRIDS)
    def check(blocks, threads, order, **case):
        call, _ = random_call(op, **case)
        expected = call.on_cpu()
        assert expected.length >= 0
        assert call.on_device(blocks, threads, order) == expected

    check()


DECIDING = ("counts", "offsets", "decoded", "prompts", "preempted", "steps")


@pytest.mark.parametrize("op", OPS)
def test_the_host_may_decide(op):
    """The same bytes if all numbers that decide are in host memory, and the kernel is told the rows."""
    decided = []

    @examples(30)
    @given(**CASES, **GRIDS, tokens=st.booleans())
    def check(blocks, threads, order, tokens, **case):
        call, _ = random_call(op, **case)
        call.on_host = (*DECIDING, "tokens") if tokens else DECIDING
        assert call.on_device(blocks, threads, order) == call.on_cpu()
        decided.append(call.decided)
        codes = not tokens and call.dialect == "compact" and op in ("save_output", "save_output_topk")
        assert call.decided != codes  # a token that is a code has no row in a frame

    check()
    assert any(decided)


@pytest.mark.parametrize("missing", DECIDING)
def test_the_host_does_not_decide_without_all_numbers(missing):
    op = "mtp_save_first_token" if missing == "steps" else "speculate_save_output_topk"
    call, _ = random_call(op, 12, 3, 1, fp.GPU, "packed")
    call.on_host = tuple(role for role in DECIDING if role != missing)
    assert call.on_device() == call.on_cpu()
    assert not call.decided


@pytest.mark.parametrize("op", OPS)
def test_the_kernel_writes_what_the_reference_writes(op):
    """The same against the specification in plain Python, which shares no code with the kernel."""

    @examples(10)
    @given(**CASES)
    def check(**case):
        call, inputs = random_call(op, **case)
        made = call.on_device()
        payload = made.buffer[: made.length]
        expected = saved_by_the_reference(call, inputs)
        if call.dialect == "compact":  # the frame says what the packed message would say
            step = fp.decode(payload, CHANNELS[op], mtype=2, layout=call.layout)
            packed = reference.decode(expected.payload, CHANNELS[op], layout=roomy(call.layout))
            assert ReferenceStep.from_step(step) == replace(packed, dialect="compact", seq=call.seq)
            return
        assert len(payload) == len(expected.payload)
        for part in expected.written:
            assert payload[part.start : part.stop] == expected.payload[part.start : part.stop], part

    check()


def roomy(layout):
    """Of a frame: on ``spec`` it holds as many requests as on the other channels."""
    return replace(layout, spec_batch=layout.max_batch)


def saved_by_the_reference(call, inputs):
    skip = {"skip_prefill": call.skip_prefill, "skip_chunk_prefill": call.skip_prefill}
    inputs = {**inputs, "not_need_stop": np.array([call.stop_flag >= 0])}
    compact = call.dialect == "compact"
    return getattr(reference, call.op)(
        *arguments(call.op, inputs, message_flag=call.flag, **skip),
        dialect="packed" if compact else call.dialect,
        message_id=abs(call.stop_flag),
        layout=roomy(call.layout) if compact else call.layout,
    )


# ---- Numbers that do not fit -------------------------------------------------------------------------------


WRONG = {
    "counts": [7, 99, -5, 2147483647, -2147483648],
    "offsets": [-1, -2147483648, 2147483647, 10000],
    "tokens": [1 << 31, -(1 << 31) - 1, 1 << 62, -(1 << 63)],
    "ids": [1 << 31, -(1 << 31) - 1, 1 << 62],
    "ranks": [1 << 31, -(1 << 63)],
}


def spoil(rng, arrays):
    """Make one number wrong, which may or may not matter."""
    role = rng.choice([role for role in WRONG if role in arrays])
    if arrays[role].size:
        arrays[role] = array = arrays[role].copy()
        array.reshape(-1)[rng.integers(array.size)] = rng.choice(WRONG[role])


@pytest.mark.parametrize("op", OPS)
def test_the_kernel_refuses_what_the_cpu_refuses(op):
    seen = set()

    def one(blocks, threads, order, wrong, narrow, on_host, **case):
        call, inputs = random_call(op, **case)
        call.on_host = (*DECIDING, "tokens") if on_host else ()
        rng = np.random.default_rng(case["seed"])
        arrays = roles_of(inputs)
        for _ in range(wrong):
            spoil(rng, arrays)
        if narrow and op in WITH_COUNTS:
            arrays["tokens"] = arrays["tokens"][:, :1]
        call.arrays = {role: strided(rng, array) for role, array in arrays.items()}
        expected, made = call.on_cpu(), call.on_device(blocks, threads, order)
        seen.add((expected.fault or expected.wide or ("sent",))[0])
        assert made.fault == expected.fault
        assert (made.wide is None) == (expected.wide is None)
        if expected.wide is None:
            assert made == expected
            return
        reason, index = made.wide  # of several, any
        array = call.arrays[{"token wide": "tokens", "id wide": "ids", "rank wide": "ranks"}[reason]]
        value = int(array[np.unravel_index(index, array.shape)])
        assert not -(1 << 31) <= value < 1 << 31

    @examples(40)
    @given(
        **CASES,
        **GRIDS,
        wrong=st.integers(1, 3),
        narrow=st.sampled_from([False] * 4 + [True]),
        on_host=st.booleans(),
    )
    def check(**case):
        one(**case)

    check()
    possible = {"sent", "token wide"}
    if op in WITH_LOGPROBS:
        possible |= {"id wide", "rank wide"}
    if op in WITH_COUNTS:
        possible |= {"too many", "too narrow"}
    if op in WITH_COUNTS and op in WITH_LOGPROBS:
        possible |= {"no row"}
    usual = {"blocks": 0, "threads": 256, "batch": 12, "cols": 6, "layout": fp.GPU, "dialect": "packed"}
    usual |= {"stop_flag": 1, "flag": 3, "skip_prefill": False, "wrong": 1, "on_host": False}
    for seed in range(1000):  # what the search did not meet
        if seen == possible:
            break
        one(order=seed, seed=seed, narrow=seed % 5 == 0, **usual)
    assert seen == possible


def test_a_count_that_is_too_large_harms_nobody():
    """The first request that is wrong is told, and nothing is written."""
    call, inputs = random_call("speculate_save_output_topk", 300, 5, 1, fp.GPU, "packed")
    counts = inputs["token_num_per_batch"]
    inputs["preempted_idx"][:] = 0
    inputs["seq_lens_decoder"][:] = inputs["prompt_lens"]
    counts[:] = 0
    counts[[299, 77]] = 100
    call.arrays = roles_of(inputs)
    made = call.on_device()
    assert made.fault == ("too many", 77, 100, 6)
    assert made == call.on_cpu()


@pytest.mark.parametrize(("batch", "cols", "reason"), [(8, 2, "batch"), (3, 5, "columns")])
def test_the_host_refuses_what_no_message_holds(batch, cols, reason):
    layout = fp.Layout(max_batch=7, top_k=3, max_draft=2)
    inputs = random_inputs("save_output_topk", batch, cols, 0, layout)
    call = Call("save_output_topk", "packed", layout, roles_of(inputs), batch)
    assert call.on_cpu().fault[0] == reason
    assert call.on_device().fault == call.on_cpu().fault


# ---- Numbers that only the device knows --------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_batch_and_stop_flag_read_on_the_device(op):
    @examples(12)
    @given(**CASES, part=st.floats(0, 1), go_on=st.booleans())
    def check(part, go_on, **case):
        call, _ = random_call(op, **case)
        call.live_batch = np.array([round(part * call.batch)], np.int32)
        call.not_need_stop = np.array([go_on])
        assert call.on_device() == call.on_cpu()

    check()


@pytest.mark.parametrize("live", [13, 2147483647, -1])
def test_a_batch_beyond_the_tensors_is_refused(live):
    call, _ = random_call("save_output", 12, 1, 0, fp.GPU, "packed")
    call.live_batch = np.array([live], np.int32)
    made = call.on_device()
    assert made.fault == ("batch", 0, live, 12)
    assert made.buffer == bytes(call._noise(len(made.buffer)))
