"""The PTX that the driver gets, run on the CPU, every access checked: it writes the CPU packer's bytes."""

import ctypes
import re

import numpy as np
import pytest

import fd_postproc as fp
from tests.lib.kernel_cases import DECIDING, random_call, roles_of
from tests.lib.kernel_emulation import OPS, compiler
from tests.lib.ptx_translation import PTX, Machine, Unknown, translate
from tests.lib.rows import each
from tests.lib.save_cases import random_inputs

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the kernel with")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(PTX.read_text(), tmp_path_factory.mktemp("ptx"), "-O1")


def lines(machine, batch, cols, dialect, op="speculate_save_output_topk"):
    """Line stores and the fewest possible: the ids begin a line, as in the ring's buffers."""
    inputs = random_inputs(op, batch, cols, 1)
    if "token_num_per_batch" in inputs:
        inputs["token_num_per_batch"][:] = 2
        inputs["cu_batch_token_offset"][:] = np.arange(batch + 1) * 2
        inputs["seq_lens_decoder"][:] = inputs["prompt_lens"]
        inputs["preempted_idx"][:] = 0
        rows = 2 * batch
        inputs["logprob_token_ids"] = np.zeros((rows, cols), np.int64)
        inputs["logprob_scores"] = np.zeros((rows, cols), np.float32)
        inputs["logprob_ranks"] = np.zeros(rows, np.int64)
        inputs["sampled_token_ids"] = np.zeros((batch, 6), np.int64)
    call, _ = random_call(op, batch, cols, 1, fp.GPU, dialect)
    call.arrays = roles_of(inputs)
    call.on_host = (*DECIDING,)
    made = call.on_device(machine=machine)
    assert made.length > 0
    assert call.decided
    return machine.lines(), made.length / 128


def test_a_warp_fills_whole_lines(machine):
    """A frame of 89 KB, one of 7 KB, and FastDeploy's own message: what goes over the bus is whole lines."""
    for batch, cols, dialect, op in [
        (256, 21, "compact", "speculate_save_output_topk"),
        (20, 21, "compact", "speculate_save_output_topk"),
        (512, 21, "packed", "save_output_topk"),
        (250, 6, "packed", "save_output_topk"),
    ]:
        stored, fewest = lines(machine, batch, cols, dialect, op)
        assert stored <= fewest + 6, (batch, cols, dialect)


def edited(pattern, replacement, count=1, nth=0):
    """The PTX with one place changed."""
    ptx = PTX.read_text()
    found = [*re.finditer(pattern, ptx)]
    assert len(found) > nth, pattern
    place = found[nth]
    return ptx[: place.start()] + place.expand(replacement) + ptx[place.end() :]


PLANTED = {
    "no first barrier": (r"\tbar\.sync \t0;\n", r"\n", 0, "read"),
    "no second barrier": (r"\tbar\.sync \t0;\n", r"\n", 1, "read"),
    "no third barrier": (r"\tbar\.sync \t0;\n", r"\n", 2, "read"),
    "8 bytes at 4": (r"ld\.param\.u64(\s+%rd\d+), \[fdk_pack_param_0\+352\]",
                     r"ld.param.u64\1, [fdk_pack_param_0+356]", 0, "not aligned"),
}  # fmt: skip


@each("what", PLANTED)
def test_a_fault_is_found(what, tmp_path):
    pattern, replacement, nth, words = PLANTED[what]
    folder = tmp_path / what.replace(" ", "-")  # a library is loaded once from a path
    folder.mkdir()
    assert_found(Machine(edited(pattern, replacement, nth=nth), folder), words)


def assert_found(machine, words, **keywords):
    call, _ = random_call("speculate_save_output_topk", 300, 3, 1, fp.GPU, "compact")
    with pytest.raises(AssertionError, match=words):
        call.on_device(machine=machine, **keywords)


STORE = r"(st\.(?:shared|global|volatile\.global)\.[\w.]+\s+)\[(%?\w+)(?:\+(-?\d+))?\]"
STORES = [*re.finditer(STORE, PTX.read_text())]


@pytest.mark.parametrize(
    "nth", [pytest.param(n, marks=[pytest.mark.nightly] if n % 16 else []) for n in range(len(STORES))]
)
def test_a_store_that_is_4_bytes_off_is_found(nth, tmp_path):
    """By a check, or by the bytes, in some step; no store can be shifted without anybody seeing it."""
    ptx, place = PTX.read_text(), STORES[nth]
    moved = f"{place[1]}[{place[2]}+{int(place[3] or 0) + 4}]"
    machine = Machine(ptx[: place.start()] + moved + ptx[place.end() :], tmp_path)
    for case in cases():
        expected = case.on_cpu()
        try:
            if case.on_device(machine=machine) != expected:
                return
        except AssertionError:
            return
    raise AssertionError(f"nobody saw that {place[0]} was moved")


def cases():
    """Steps that together reach every store."""
    for dialect in "compact", "packed":
        for op in OPS:
            for on_host in False, True:
                call, inputs = random_call(op, 300, 3, 1, fp.GPU, dialect)
                call.arrays = roles_of(inputs)
                call.on_host = (*DECIDING, "tokens") if on_host else ()
                yield call
    for role, value in (
        ("tokens", 1 << 40),
        ("counts", 99),
        ("offsets", 1 << 30),
        ("ids", 1 << 40),
        ("ranks", 1 << 40),
    ):
        call, inputs = random_call("speculate_save_output_topk", 30, 3, 2, fp.GPU, "compact")
        call.arrays = {name: array.copy() for name, array in roles_of(inputs).items()}
        call.arrays[role][...] = value
        yield call
    call, _ = random_call("save_output", 12, 1, 0, fp.GPU, "packed")
    call.live_batch = np.array([99], np.int32)
    yield call
    inputs["sampled_token_ids"] = inputs["sampled_token_ids"][:, :1].copy()
    call, _ = random_call("speculate_save_output_topk", 30, 3, 2, fp.GPU, "compact")
    call.arrays = roles_of(inputs)
    yield call
    call, inputs = random_call("save_output", 12, 1, 0, fp.GPU, "packed")
    call.arrays = {name: array.copy() for name, array in roles_of(inputs).items()}
    call.arrays["tokens"][:] = -(1 << 40)
    yield call


def test_shared_memory_that_is_too_small_is_found(machine):
    missing = ctypes.c_int64.in_dll(machine.library, "ptx_missing_shared")
    missing.value = 40  # the last request of all has room for one more
    try:
        assert_found(machine, "outside of shared memory")
    finally:
        missing.value = 0


def test_an_instruction_that_is_not_known_is_an_error():
    with pytest.raises(Unknown, match=r"add\.cc\.s32"):
        translate(PTX.read_text().replace("add.s32", "add.cc.s32", 1))


def test_two_writers_are_found(tmp_path):
    """All threads do what is the first one's."""
    ptx = PTX.read_text().replace("mov.u32 \t%r1, %tid.x;", "mov.u32 \t%r1, 0;", 1)
    assert_found(Machine(ptx, tmp_path), "two threads write a word")
