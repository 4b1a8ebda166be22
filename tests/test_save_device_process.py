"""Save ops with tensors on a CUDA device, in processes of their own, on a stub driver (lib/stub_cuda.py).

Drivers that fail, forks, exits, receivers that die, memory, and messages too large for this process's limits.
"""

import os
import random
import signal
import subprocess
import time

import pytest
import stub_cuda
import sysv_ipc
from children import python
from kernel_emulation import compiler
from nursery import nursery

import fd_postproc as fp
from fd_postproc import queues

pytestmark = pytest.mark.skipif(compiler() is None, reason="the stub CUDA driver needs a C compiler")

PRELUDE = """
import ctypes, os, sys, time
import numpy as np
import stub_cuda
stub = stub_cuda.load(os.environ["STUB_CUDA"])
import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops import device
FLAG, ZERO = np.array([True]), np.zeros(1, np.int32)

def save(x):
    ops.save_output(stub_cuda.Exchange(np.array([[x]])), FLAG, ZERO, 0, False)

def error_of(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"
"""


@pytest.fixture(scope="session")
def stub_path(tmp_path_factory):
    return str(stub_cuda.build(tmp_path_factory.mktemp("stub")))


@pytest.fixture
def environment(stub_path, ops_queue):
    return {**os.environ, "STUB_CUDA": stub_path}


@pytest.fixture
def run(environment):
    """Run code after PRELUDE in a process of its own; what it printed.  It must end by itself, and well."""

    def run(code, **variables):
        done = nursery().run(PRELUDE + code, env={**environment, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def fresh(environment):
    """As `run`, in a process that was not forked; ``fresh.stderr`` is what it complained of."""

    def fresh(code, **variables):
        command, variables = python(PRELUDE + code), {**environment, **variables}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        fresh.stderr = done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout

    return fresh


@pytest.fixture
def start(environment):
    """Start code after PRELUDE; the process is killed at the test's end if it is still there."""
    processes = []

    def start(code, **variables):
        process = subprocess.Popen(
            python(PRELUDE + code), env={**environment, **variables}, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def received(n):
    """The tokens of n plain messages."""
    with fp.Receiver("plain") as receiver:
        return [receiver.receive(10).token_ids(0)[0] for _ in range(n)]


# ---- Every channel, dialect and size ----------------------------------------------------------------------

MATRIX = """
from save_cases import CHANNELS, arguments, random_inputs
from fd_postproc import queues, reference
import sysv_ipc, random
rng = random.Random(int(sys.argv[1]))
for op, channel in CHANNELS.items():
    for dialect in "packed", "legacy", "compact":
        os.environ["FD_POSTPROC_DIALECT"] = dialect
        for batch, cols in [(1, 1), (rng.randrange(4, 256), 2 + rng.randrange(20)), (256, 6), (512, 21)]:
            if channel == "spec" and dialect != "compact" and batch > 256:
                continue
            inputs = random_inputs(op, batch, cols, rng.randrange(1 << 30))
            kind = rng.choice([stub_cuda.Exchange, stub_cuda.Other])
            gap = rng.randrange(2)
            first = next(iter(inputs))
            tensors = {name: value if name == "not_need_stop" or name != first and rng.random() < 0.3
                       else kind(value, gap=gap) for name, value in inputs.items()}
            queue, sent = None, []
            for given in inputs, tensors:
                getattr(ops, op)(*arguments(op, given))
                assert ops.flush(20)
                queue = queue or sysv_ipc.MessageQueue(queues.locate(channel), max_message_size=1 << 20)
                sent.append([queue.receive(block=False) for _ in range(queue.current_messages)])
            where = (op, dialect, batch, cols)
            assert len(sent[0]) == len(sent[1]) and (dialect == "compact" or len(sent[0]) == 1), where
            for (host, host_type), (payload, mtype) in zip(*sent):
                assert mtype == host_type and len(payload) == len(host), where
                written = [range(0, 40), range(56, len(host))]  # of a frame, all but its number and sender
                if dialect != "compact":
                    written = getattr(reference, op)(*arguments(op, inputs), dialect=dialect).written
                for part in written:
                    assert payload[part.start:part.stop] == host[part.start:part.stop], (where, part)
print("done")
"""


def test_every_channel_dialect_and_size(raised_limits, environment):
    """Byte for byte what host tensors give."""
    code = PRELUDE + MATRIX
    seed = random.SystemRandom().randrange(1 << 30)
    done = subprocess.run(python(code, seed), env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", f"seed {seed}: {done.stderr}"


# ---- Why there is no CUDA ---------------------------------------------------------------------------------

WHY = "print(fp.cuda_available(), fp.why_no_cuda())"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "True "),
        (
            {"STUB_CUDA_VERSION": "11070"},
            "False the driver is for CUDA 11.7; the save kernels need CUDA 11.8",
        ),
        ({"STUB_CUDA_DEVICES": "0"}, "False a CUDA driver but no device"),
        ({"STUB_CUDA_FAIL": "cuInit:0:999"}, "False cuInit: CUDA_ERROR_STUB (999): as the test wants it"),
        ({"STUB_CUDA_FAIL": "cuDeviceGetCount:0:100"}, "False a CUDA driver but no device"),
        ({"STUB_CUDA_FAIL": "cuDriverGetVersion:0:1"}, "False cuDriverGetVersion: CUDA_ERROR_STUB (1)"),
    ],
)
def test_why_there_is_no_cuda(run, variables, words):
    assert run(WHY, **variables).startswith(words)


def test_no_driver_at_all(environment):
    """As on a machine without a GPU; nothing but the package is loaded by its import."""
    code = (
        "import sys, fd_postproc as fp\n"
        "assert 'fd_postproc._save' not in sys.modules\n"
        "print(fp.cuda_available(), fp.why_no_cuda())\n"
        "from fd_postproc import _save\nprint(_save.driver_version(), _save.pending())"
    )
    done = subprocess.run(python(code), env=environment, capture_output=True, text=True, timeout=60)
    if "True" in done.stdout:
        pytest.skip("there is a driver and a device")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False ")
    assert "CUDA driver" in done.stdout


def test_an_old_driver_that_lacks_a_function(run, tmp_path, environment):
    source = tmp_path / "empty.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    built = tmp_path / "libcuda.so.1"
    subprocess.run(
        [*compiler(), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", built], check=True
    )
    code = f"import ctypes; ctypes.CDLL({str(built)!r})\nimport fd_postproc as fp\n{WHY}"
    done = subprocess.run(python(code), env=environment, capture_output=True, text=True, timeout=60)
    assert "the CUDA driver has no cuDriverGetVersion: it is too old" in done.stdout, done.stderr


def test_without_the_extension(run):
    code = "sys.modules['fd_postproc._save'] = None\n" + WHY + "\nprint(error_of(save, 1))"
    told = run(code).splitlines()
    assert told[0].startswith("False the extension fd_postproc._save does not load")
    assert told[1].startswith("CudaError: tensors on a CUDA device need the extension")


def test_an_old_device(run):
    told = run("print(error_of(save, 1))", STUB_CUDA_MAJOR="6")
    assert told.startswith("CudaError: CUDA device 0 has compute capability 6.0")


def test_a_machine_where_cuda_cannot_be_used(run):
    told = run("print(error_of(save, 1))", STUB_CUDA_VERSION="11070")
    assert told.startswith(
        "CudaError: tensors on a CUDA device cannot be saved here: the driver is for CUDA 11.7"
    )


# ---- Errors of the driver ---------------------------------------------------------------------------------

AT_ONCE = [
    "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuModuleLoadData",
    "cuModuleGetFunction", "cuStreamIsCapturing", "cuCtxGetCurrent", "cuMemHostAlloc",
    "cuMemHostGetDevicePointer", "cuEventCreate", "cuLaunchKernel",
]  # fmt: skip


@pytest.mark.parametrize("call", AT_ONCE)
def test_a_driver_call_that_fails(call, run):
    """The call raises, nothing was saved, and the next one works."""
    told = run(
        "print(error_of(save, 1), stub.stub_depth())\n"
        "save(2)\n"
        "print(ops.flush(10), ops.save_stats()['frames'])",
        STUB_CUDA_FAIL=f"{call}:0:2",
    )
    first, second = told.splitlines()
    assert first.startswith(f"CudaError: {call}")
    assert "(2): as the test wants it 0" in first
    assert second == "True 1"
    assert received(1) == [2]


def test_calls_that_fail_when_a_buffer_grows_or_changes_its_device(run):
    code = """
os.environ["FD_POSTPROC_CUDA_BUFFERS"] = "3"
save(1); save(2); save(3)
ops.flush(10)
stub.stub_fail(b"cuMemFreeHost", 0, 2)
big = stub_cuda.Exchange(np.array([[4]])), FLAG, ZERO, 0, False
print(error_of(lambda: ops.save_output(*big, layout=fp.Layout(max_batch=800))))
ops.save_output(*big, layout=fp.Layout(max_batch=800))
ops.flush(10)
stub.stub_fail(b"cuEventDestroy", 0, 2)
other = stub_cuda.Exchange(np.array([[5]]), device=1), FLAG, ZERO, 0, False
print(error_of(lambda: ops.save_output(*other)))
ops.save_output(*other)
print(ops.flush(10))
"""
    told = run(code).splitlines()
    assert told[0].startswith("CudaError: cuMemFreeHost")
    assert told[1].startswith("CudaError: cuEventDestroy")
    assert told[2] == "True"
    assert received(5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("failure", ["cuEventSynchronize:1:700", "cuEventRecord:1:700"])
def test_an_event_that_fails(failure, run):
    """Nobody knows what the device still writes: this process saves no more, and does not hang."""
    code = """
save(1)
ops.flush(10)
kept = [error_of(save, n) for n in range(2, 6)]
kept += [error_of(ops.flush, 10)]
time.sleep(0.1)
kept += [error_of(save, 7)]
for text in kept: print(text)
print(ops.save_stats()["lost"], ops.save_stats()["frames"])
"""
    told = run(code, STUB_CUDA_FAIL=failure, STUB_CUDA_DELAY_US="20000").splitlines()
    call = failure.split(":")[0]
    assert any(call in text and "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text for text in told[:5])
    assert call in told[5], "the device was hurt meanwhile"
    assert told[6].endswith(" 1")
    assert received(1) == [1]


def test_a_host_address_taken_for_a_devices(run):
    """What the stub is for: a kernel that is given one stops the device."""
    code = """
tensor = stub_cuda.Exchange(np.array([[1]]))
tensor.memory = type("Wrong", (), {"address": np.zeros(1).ctypes.data})()
print(error_of(ops.save_output, tensor, FLAG, ZERO, 0, False))  # or only later
print(error_of(ops.flush, 10))
"""
    assert "an illegal memory access" in run(code)


def test_a_bad_number_of_buffers(run):
    for text in "2", "65", "many":
        told = run("print(error_of(save, 1))", FD_POSTPROC_CUDA_BUFFERS=text)
        assert told.startswith(f"ValueError: FD_POSTPROC_CUDA_BUFFERS='{text}' is not a number from 3 to 64")


# ---- End and fork -----------------------------------------------------------------------------------------


def test_what_is_under_way_is_sent_at_exit(fresh):
    fresh("for n in range(6): save(n)", STUB_CUDA_DELAY_US="50000")
    assert received(6) == list(range(6))


def test_what_went_wrong_is_told_at_exit(fresh):
    fresh("save(1 << 31)", STUB_CUDA_DELAY_US="50000")
    assert "does not fit the 32 bits" in fresh.stderr


def test_exit_with_a_full_queue(fresh):
    """It waits for a while, says how many messages are lost, and does not hang."""
    code = """
device.EXIT_SECONDS = 0.3
save(0); ops.flush(10)
import sysv_ipc
from fd_postproc import queues
sysv_ipc.MessageQueue(queues.locate("plain")).max_size = 40
for n in range(1, 8): save(n)
"""
    began = time.monotonic()
    fresh(code)
    assert time.monotonic() - began < 20
    assert "5 saved messages were not sent" in fresh.stderr
    assert received(3) == [0, 1, 2]


def test_a_killed_process_leaves_nothing_but_its_messages(start):
    worker = start("for n in range(3): save(n)\nops.flush(10)\nprint('ready', flush=True)\ntime.sleep(60)")
    assert worker.stdout.readline() == "ready\n"
    worker.send_signal(signal.SIGKILL)
    assert worker.wait(10) == -signal.SIGKILL
    assert received(3) == [0, 1, 2]


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's own locks may be taken by another thread when the process forks",
)
def test_fork(fresh):
    """A child must not use CUDA, and cannot; it may send host tensors, and ends without a word."""
    code = """
import warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads
save(1)
child = os.fork()
if child == 0:
    told = error_of(save, 2)
    why = fp.why_no_cuda()
    assert ops.flush(1) is True
    ops.save_output(np.array([[3]]), FLAG, ZERO, 0, False)
    ok = told.startswith("CudaError") and "forked" in told and "forked" in why
    sys.exit(0 if ok else 9)
print(os.waitpid(child, 0)[1])
save(4)
print(ops.flush(10))
"""
    assert fresh(code, STUB_CUDA_DELAY_US="20000") == "0\nTrue\n"
    assert sorted(received(3)) == [1, 3, 4]
    assert "Error" not in fresh.stderr


def test_multiprocessing(fresh):
    """A worker process of multiprocessing ends with everything sent."""
    code = """
import multiprocessing, warnings
warnings.simplefilter("ignore")
def work():
    for n in range(5): save(n)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join(20)
print(process.exitcode)
"""
    assert fresh(code, STUB_CUDA_DELAY_US="30000") == "0\n"
    assert received(5) == list(range(5))


# ---- Receivers that die -----------------------------------------------------------------------------------

RECEIVER = """
receiver = fp.Receiver("plain")
for n in range(5):
    receiver.receive()
print("five", flush=True)
for step in receiver:
    pass
"""

WORKER = """
import signal, sysv_ipc
from fd_postproc import queues
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored
save(0); ops.flush(10)
sysv_ipc.MessageQueue(queues.locate("plain")).max_size = 120
print("ready", flush=True)
n = 1
try:
    while n < 100000:
        save(n)
        n += 1
        if n == 2000: print("many", flush=True)
except KeyboardInterrupt:
    print(n, flush=True)
print(ops.flush(20), flush=True)
"""


def test_killing_the_receiver_neither_hangs_nor_crashes_the_worker(start):
    worker = start(WORKER)
    assert worker.stdout.readline() == "ready\n"
    receiver = start(RECEIVER)
    assert receiver.stdout.readline() == "five\n"
    assert worker.stdout.readline() == "many\n"
    receiver.kill()
    receiver.wait()
    queue = sysv_ipc.MessageQueue(queues.locate("plain"))
    until = time.monotonic() + 20
    while queue.current_messages < 9 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    assert worker.poll() is None  # it waits
    worker.send_signal(signal.SIGINT)
    saved = int(worker.stdout.readline())
    left = received(10 + 8)  # what the queue and the ring held: nothing is lost
    assert left == list(range(left[0], saved))
    assert worker.stdout.readline() == "True\n"
    assert worker.wait(10) == 0


# ---- Memory -----------------------------------------------------------------------------------------------

LEAK = """
import threading
steps = int(sys.argv[1])
def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
receiver = fp.Receiver("spec_topk")
def receive():
    while receiver.receive().stop_flag > 0:
        pass
batch = 8
tensors = dict(
    sampled_token_ids=stub_cuda.Exchange(np.zeros((batch, 6), np.int64)),
    logprob_token_ids=stub_cuda.Exchange(np.zeros((2 * batch, 3), np.int64)),
    logprob_scores=stub_cuda.Exchange(np.zeros((2 * batch, 3), np.float32)),
    logprob_ranks=stub_cuda.Exchange(np.zeros(2 * batch, np.int64)),
    token_num_per_batch=np.full(batch, 2, np.int32),
    cu_batch_token_offset=stub_cuda.Exchange(np.arange(0, 2 * batch, 2, dtype=np.int32)),
    not_need_stop=np.array([True]),
    seq_lens_decoder=np.zeros(batch, np.int32),
    prompt_lens=np.zeros(batch, np.int64),
    preempted_idx=np.zeros(batch, np.int32),
    message_flag=3, rank_id=0, save_each_rank=False,
)
packer = ops.Packer("speculate_save_output_topk", **tensors)
def part(n):
    for k in range(n):
        if k % 2:
            packer.save()
        else:
            ops.speculate_save_output_topk(*tensors.values())
thread = threading.Thread(target=receive, daemon=True)
thread.start()
part(2000)
ops.flush()
before = resident_kib(), stub.stub_live_pinned(), stub.stub_live_events()
part(steps)
ops.flush()
after = resident_kib(), stub.stub_live_pinned(), stub.stub_live_events()
print(after[0] - before[0], after[1] - before[1], after[2] - before[2], ops.save_stats()["frames"])
"""


def leak(environment, steps, most_kib=1024):
    variables = {**environment, "FD_POSTPROC_DIALECT": "compact"}
    command = python(PRELUDE + LEAK, steps)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    kib, pinned, events, frames = map(int, done.stdout.split())
    assert frames == 2000 + steps
    assert (pinned, events) == (0, 0)
    assert kib < most_kib, f"grew by {kib} KiB in {steps} saves"


@pytest.mark.resident_memory
def test_20_000_saves_leave_memory_where_it_was(environment):
    leak(environment, 20_000, 512)


@pytest.mark.nightly
@pytest.mark.resident_memory
def test_1_000_000_saves_leave_memory_where_it_was(environment):
    leak(environment, 1_000_000)
