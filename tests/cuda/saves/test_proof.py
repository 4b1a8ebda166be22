"""FD_POSTPROC_CUDA: the kernel proves itself against the CPU's packer before its messages are sent."""

import ctypes
import functools
import itertools
import logging
import re
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops import proof as proofs
from fd_postproc.ops.device import saves
from tests.lib.device_saves import AT_ONCE, FLAG, KINDS, LAYOUT, assert_message, placed, received, save
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, calm, random_inputs
from tests.lib.sending import in_thread
from tests.lib.stub_cuda import WRONG, Exchange
from tests.lib.waiting import until

pytestmark = pytest.mark.usefixtures("streams")

TOPK = "speculate_save_output_topk"


def frames():
    """Messages that the kernel made, and that were sent."""
    return sum(lane.stats["frames"] for lane in saves.lanes)


@pytest.fixture
def auto(mode, monkeypatch):
    """A function that begins anew with the default, and a sample of every tenth save."""
    monkeypatch.setattr(proofs.Proof, "_gap", lambda self: 10)
    return lambda: mode("auto")


@pytest.fixture
def wrong(stub):
    """A function that makes the kernel wrong in one launch of so many."""
    yield lambda how, every=1: stub.stub_wrong(WRONG.index(how), every)
    stub.stub_wrong(0, 1)


def inputs_of(op, seed):
    return random_inputs(op, 4 + seed % 4, 3, seed)


@functools.cache
def alike(op):
    """Seeds of inputs with the same columns: of one kind of save, and one more than it has to prove."""
    by_width = {}
    for seed in itertools.count():
        seeds = by_width.setdefault(next(iter(inputs_of(op, seed).values())).shape[1], [])
        seeds.append(seed)
        if len(seeds) > proofs.ENOUGH:
            return seeds


def put(ops_queue, op, seed, dialect="compact", kind=Exchange, **keywords):
    """Save, and look at what has come."""
    inputs = inputs_of(op, seed)
    getattr(ops, op)(*arguments(op, placed(inputs, kind, **keywords)), layout=LAYOUT)
    assert_message(ops_queue, op, arguments(op, inputs), dialect)
    until(lambda: ops.flush(60) and not saves._records)  # what is only compared may come later


@each("op", CHANNELS)
@each("dialect", ["packed", "legacy", "compact"])
def test_the_kernel_is_used_once_it_has_proved_itself(op, dialect, auto, ops_queue, monkeypatch):
    """And not before, for any kind of save: each has to prove itself."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    proof, told = auto(), []
    proof.listeners.append(told.append)
    for kind, keywords in (KINDS[0], {}), (Exchange, {"gap": 1}), (Exchange, {"device": 1}):
        before, compared = frames(), proof.compared
        for seed in alike(op):
            put(ops_queue, op, seed, dialect, kind, **keywords)
        assert (frames() - before, proof.compared - compared, proof.why_off) == (1, proofs.ENOUGH, "")
    assert told == [(False, "", CHANNELS[op]), (True, "", CHANNELS[op])]


@each("differ", [0, 3])
def test_messages_that_are_compared_later_change_nothing(differ, caplog):
    """Several may be under way when the kernel has proved itself, or is turned off."""
    caplog.set_level(logging.INFO, "fd_postproc")
    caplog.clear()
    proof, lane = proofs.Proof(), Mock(channel="plain", dialect="compact")
    for n in range(proofs.ENOUGH + 9):
        one = proofs.Comparison(proof, (lane,), "save_output", 1, SimpleNamespace(payload=b"made"))
        one.expected = b"other" if 0 < n <= differ else b"made"
        proof.judge(one)
    assert (proof.compared, proof.differed) == ((2, 1) if differ else (proofs.ENOUGH + 9, 0))
    assert len(caplog.records) == 1


def test_each_op_and_size_proves_itself(auto, ops_queue, monkeypatch):
    """Two ops of one queue, and batches of another power of two, are other kinds."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    proof = auto()
    before = frames()
    for op, batch in ("speculate_save_output_topk", 4), ("mtp_save_first_token_with_topk", 4), (TOPK, 8):
        for _ in range(proofs.ENOUGH):
            inputs = calm(op, batch)
            getattr(ops, op)(*arguments(op, placed(inputs, Exchange)), layout=LAYOUT)
            assert_message(ops_queue, op, arguments(op, inputs), "compact")
            until(lambda: not saves._records or saves._forget_finished())
        assert (frames(), not proof.why_off) == (before, True)


@each("how", WRONG[1:])
def test_a_wrong_kernel_is_never_used(how, auto, wrong, ops_queue, streams, slow, caplog, monkeypatch):
    """Found in the first message; every message is right, and the log says what differs."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed" if how == "last word missing" else "compact")
    proof, told, before, stream = auto(), [], frames(), streams()
    proof.listeners.append(told.append)
    caplog.clear()
    wrong(how)
    slow(2 if how == "stale" else 0)  # the tensors get their values late
    for seed in alike(TOPK)[:4]:
        put(ops_queue, TOPK, seed, "packed" if how == "last word missing" else "compact", put_on=stream)
    assert (frames() - before, proof.compared, proof.differed) == (0, 1, 1)
    assert "its message is not the CPU's: speculate_save_output_topk (" in proof.why_off
    assert [state.is_used for state in told] == [False, False]
    assert told[-1].why_off == proof.why_off
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert said.endswith(proof.why_off)
    if how in ("id", "score", "rank", "count", "header"):
        assert re.search(r"word \d+ is 0x\w{8}, the CPU's 0x\w{8} \(1 of \d+ words differ\)", said), said


@pytest.mark.parametrize("one_in", [100, pytest.param(1000, marks=pytest.mark.nightly)])
def test_a_kernel_that_is_wrong_now_and_then(one_in, auto, wrong, ops_queue, monkeypatch):
    """Once in three samples' time: the third finds it, and nothing of the kernel's is sent from then on."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    gaps = itertools.cycle([one_in - 3, one_in + 3, one_in])
    monkeypatch.setattr(proofs.Proof, "_gap", lambda self: next(gaps))
    proof, saved = auto(), 0
    wrong("id", 3 * one_in + proofs.ENOUGH)
    with fp.Receiver("plain") as receiver:
        while not proof.why_off:
            save(saved)
            saved += 1
            assert receiver.receive(10).token_ids(0) == [saved - 1]
            if proof.compared < proofs.ENOUGH:  # each is compared before the next save
                until(lambda: ops.flush(60) and not saves._records)
            assert saved < 10 * one_in
        before = frames()
        for n in range(20):
            save(n)
            assert receiver.receive(10).token_ids(0) == [n]
    assert (frames() - before, proof.compared, proof.differed) == (0, proofs.ENOUGH + 3, 1)


def test_messages_keep_their_order(auto, ops_queue, slow, monkeypatch):
    """Of the kernel, of the sample, and of host tensors; two senders number their frames, without gaps."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    auto()
    slow(1)
    with fp.Receiver("plain") as receiver:
        for n in range(proofs.ENOUGH + 40):
            x = np.array([[n]])
            ops.save_output(x if n % 7 == 0 else Exchange(x), FLAG, np.zeros(1, np.int32), 0, False)
            if n % 10 == 9:  # the queue's room
                found = [receiver.receive(10).token_ids(0)[0] for _ in range(10)]
                assert found == list(range(n - 9, n + 1))
        assert ops.flush(60)
        assert (receiver.stats["missing"], receiver.stats["reordered"]) == (0, 0)
    assert not saves.proof.why_off


def test_host_tensors_may_change_at_once(auto, ops_queue):
    """The CPU's message is packed before the call returns."""
    auto()
    preempted = np.ones(1, np.int32)
    for n in range(proofs.ENOUGH + 2):
        preempted[:] = n % 2
        ops.save_output(Exchange(np.array([[5]])), FLAG, preempted, 0, False)
        preempted[:] = 7
        assert ops.flush(60)
        assert fp.decode(ops_queue.take("plain")[0], "plain").counts == [-9 if n % 2 else 1]
    assert not saves.proof.why_off


@each("tensor", [1 << 31, -(1 << 40)])
def test_what_does_not_fit_is_refused_by_the_call(tensor, auto, ops_queue):
    """By the CPU; the kernel refuses it as well, so that the two agree."""
    proof = auto()
    with pytest.raises(ValueError, match=r"x\[0, 0\] = -?\d+ does not fit"):
        save(tensor)
    save(1)
    until(lambda: ops.flush(60) and not saves._records)
    assert (proof.compared, proof.why_off) == (2, "")
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [1]


def test_what_the_kernel_has_no_room_for_is_copied(auto, ops_queue, monkeypatch):
    """Tensors that the kernel does not take are copied, and nothing is held against it."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    proof, layout, batch = auto(), fp.Layout(max_batch=4000), 2293
    x, zeros = np.arange(batch)[:, None], np.zeros(batch, np.int32)
    with fp.Receiver("plain", layout=layout) as receiver:
        with in_thread(lambda: ops.save_output(Exchange(x), FLAG, zeros, 0, False, layout=layout)):
            assert receiver.receive(10).token_ids(batch - 1) == [batch - 1]
        ops.save_output(Exchange(x[:2]), FLAG, Exchange(zeros, device=1), 0, False, layout=layout)
        assert receiver.receive(10).batch == 2
    assert not proof.why_off


def test_a_captured_stream_is_refused(auto, ops_queue, streams, stub):
    """Copying would spoil the capture, and the kernel is not to blame."""
    proof, stream = auto(), streams()
    stub.stub_capture(ctypes.c_void_p(stream), 1)
    with pytest.raises(fp.CudaError, match="captured into a CUDA graph"):
        save(1)
    assert stub.stub_capture(ctypes.c_void_p(stream), 0) == 0
    assert not proof.why_off


# ---- In processes of their own: the driver fails, or is not there -----------------------------------------


SAVES = """
import time
for n in range(6): save(n)
is_flushed, until = ops.flush(60), time.monotonic() + 60
while not device.saves.proof.why_off and time.monotonic() < until: time.sleep(0.01)  # messages may be ahead
print(is_flushed, device.saves.proof.why_off)
"""


@each("call", [*AT_ONCE, "cuEventRecord", "cuEventSynchronize"])
def test_an_error_of_cuda_turns_the_kernel_off(call, run):
    """Nothing is raised, and no message is lost."""
    told = run(
        SAVES, FD_POSTPROC_CUDA="auto", STUB_CUDA_FAIL=f"{call}:0:2", STUB_CUDA_MAJOR="12"
    )  # for which there is no machine code, so that there is no second try
    assert told.startswith("True ")
    assert f"{call}" in told
    assert "(2): as the test wants it" in told
    assert received(6) == list(range(6))
    assert "not used any more in this process" in run.stderr


def test_an_error_of_a_kernel_in_use_turns_it_off(run):
    """Messages under way are lost, and counted; later ones come from the host."""
    code = """
from fd_postproc.ops import proof
proof.ENOUGH = 0
save(0)
ops.flush(60)
stub.stub_fail(b"cuEventSynchronize", 0, 700)
told = []
for n in range(1, 6):
    told.append(error_of(save, n))
    while not device.saves.extension.broken(): time.sleep(0.001)
print(set(told), ops.flush(60), ops.save_stats()["lost"])
print(device.saves.proof.why_off)
"""
    told = run(code, FD_POSTPROC_CUDA="auto").splitlines()
    assert told[0] == "{'none'} True 1"
    assert told[1].startswith("an earlier save: cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
    assert received(5) == [0, 2, 3, 4, 5]


@each("value", ["0", "auto"])
def test_without_the_extension_tensors_are_copied(value, run):
    told = run("sys.modules['fd_postproc.core._save'] = None\n" + SAVES, FD_POSTPROC_CUDA=value)
    assert told.startswith(
        "True FD_POSTPROC_CUDA=0" if value == "0" else "True tensors on a CUDA device need"
    )
    assert received(6) == list(range(6))


def test_off_means_no_driver(run):
    """It is not even initialised, the frames are compact, and they are the CPU's."""
    code = SAVES + "print(stub.cuDeviceGetCount(ctypes.byref(ctypes.c_int())), device.saves.extension)\n"
    told = run(code, FD_POSTPROC_CUDA="0", FD_POSTPROC_DIALECT="compact")
    assert told == "True FD_POSTPROC_CUDA=0\n3 None\n"
    assert received(6) == list(range(6))


def test_an_unreadable_value(run):
    told = run("print(error_of(save, 1))", FD_POSTPROC_CUDA="maybe")
    assert told == "ValueError: FD_POSTPROC_CUDA='maybe' is not one of auto, 1, 0\n"


def test_a_comparison_that_never_ends_does_not_hold_up_the_end(run):
    """The process ends while a kernel whose message is only compared still runs."""
    code = """
import fd_postproc.core.tensors as tensors
from fd_postproc.ops import save as saving
saving.on_host = lambda tensor, name: np.array([[5]]) if name == "x" else tensor
stub.stub_delay(ctypes.c_int64(-1))
save(5)
print(ops.flush(60))
"""
    assert run(code, FD_POSTPROC_CUDA="auto") == "True\n"
    assert received(1) == [5]
    assert "not sent" not in run.stderr
