"""The CUDA kernel's body, on the CPU: in whatever order its threads run, it writes the CPU packer's bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from tests.lib.c_library import compiler
from tests.lib.kernel_cases import CASES, DECIDING, GRIDS, random_call, roles_of, spoil, strided
from tests.lib.kernel_emulation import OPS, Call
from tests.lib.rows import each
from tests.lib.save_cases import random_inputs
from tests.lib.search import examples

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the kernel body with")


WITH_COUNTS = ["speculate_save_output", "speculate_save_output_topk", "mtp_save_first_token_with_topk"]
WITH_LOGPROBS = [op for op in OPS if "topk" in op]
TOKENS_ARE_CODES = "save_output", "save_output_topk"


@each("missing", DECIDING)
def test_the_host_does_not_decide_without_all_numbers(missing):
    op = "mtp_save_first_token" if missing == "steps" else "speculate_save_output_topk"
    call, _ = random_call(op, 12, 3, 1, fp.GPU, "packed")
    call.on_host = tuple(role for role in DECIDING if role != missing)
    assert call.on_device() == call.on_cpu()
    assert not call.decided


@each("op", OPS)
def test_the_kernel_writes_or_refuses_what_the_cpu_does(op):
    """Both begin with the same noise, so they leave the same bytes alone, too.

    If all numbers that decide are in host memory, the host decides, and the kernel is told the rows.
    """
    seen = set()

    def one(blocks, threads, order, wrong, narrow, on_host, **case):
        call, inputs = random_call(op, **case)
        call.on_host = (*DECIDING, "tokens") if wrong and on_host else on_host
        rng = np.random.default_rng(case["seed"])
        arrays = roles_of(inputs)
        for _ in range(wrong):
            spoil(rng, arrays)
        if narrow and op in WITH_COUNTS:
            arrays["tokens"] = arrays["tokens"][:, :1]
        call.arrays = {role: strided(rng, array) for role, array in arrays.items()}
        expected, made = call.on_cpu(), call.on_device(blocks, threads, order)
        seen.add((expected.fault or expected.wide or ("sent",))[0])
        if on_host and not wrong and not narrow:
            codes = on_host == DECIDING and call.dialect == "compact" and op in TOKENS_ARE_CODES
            assert call.decided != codes  # a token that is a code has no row in a frame
        assert made.fault == expected.fault
        assert (made.wide is None) == (expected.wide is None)
        if expected.wide is None:
            assert made == expected
            return
        reason, index = made.wide  # of several, any
        array = call.arrays[{"token wide": "tokens", "id wide": "ids", "rank wide": "ranks"}[reason]]
        value = int(array[np.unravel_index(index, array.shape)])
        assert not -(1 << 31) <= value < 1 << 31

    @examples(20)
    @given(
        **CASES,
        **GRIDS,
        wrong=st.integers(0, 3),
        narrow=st.sampled_from([False] * 4 + [True]),
        on_host=st.sampled_from([(), DECIDING, (*DECIDING, "tokens")]),
    )
    def check(blocks, threads, order, wrong, narrow, on_host, **case):
        one(blocks, threads, order, wrong, narrow, on_host, **case)
        call, _ = random_call(op, **case)
        call.live_batch, call.not_need_stop = np.array([call.batch // 2], np.int32), np.array([wrong > 1])
        assert call.on_device() == call.on_cpu()

    check()
    possible = {"sent", "token wide"}
    if op in WITH_LOGPROBS:
        possible |= {"id wide", "rank wide"}
    if op in WITH_COUNTS:
        possible |= {"too many", "too narrow"}
    if op in WITH_COUNTS and op in WITH_LOGPROBS:
        possible |= {"no row"}
    usual = {"blocks": 0, "threads": 256, "batch": 12, "cols": 6, "layout": fp.GPU, "dialect": "packed"}
    usual |= {"stop_flag": 1, "flag": 3, "skip_prefill": False, "wrong": 1, "on_host": ()}
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


@each("batch, cols, reason", [(8, 2, "batch"), (3, 5, "columns")])
def test_the_host_refuses_what_no_message_holds(batch, cols, reason):
    layout = fp.Layout(max_batch=7, top_k=3, max_draft=2)
    inputs = random_inputs("save_output_topk", batch, cols, 0, layout)
    call = Call("save_output_topk", "packed", layout, roles_of(inputs), batch)
    assert call.on_cpu().fault[0] == reason
    assert call.on_device().fault == call.on_cpu().fault


@each("live", [13, 2147483647, -1])
def test_a_batch_beyond_the_tensors_is_refused(live):
    call, _ = random_call("save_output", 12, 1, 0, fp.GPU, "packed")
    call.live_batch = np.array([live], np.int32)
    made = call.on_device()
    assert made.fault == ("batch", 0, live, 12)
    assert made.buffer == bytes(call._noise(len(made.buffer)))
