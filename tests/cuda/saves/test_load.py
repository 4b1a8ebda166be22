"""Loading the kernel, and buffers of a larger size: at once, and without holding anybody up."""

from tests.lib.device_saves import received
from tests.lib.rows import each

WARM = """
from fd_postproc.fastdeploy.worker import kernel_warmup
from tests.lib.waiting import until
"""
LOADS = "save(1)\nprint(ops.flush(60), stub_cuda.counted('loads'))"


@each(
    "variables, loads",
    [
        ({}, 1),  # machine code
        ({"STUB_CUDA_CUBINS": "0"}, 2),  # which the driver does not take: PTX
        ({"STUB_CUDA_CUBINS": "0", "STUB_CUDA_MAJOR": "12"}, 1),  # of which there is none: PTX
    ],
)
def test_what_the_driver_is_given(variables, loads, run):
    assert run(LOADS, **variables) == f"True {loads}\n"


def test_several_threads_load_it_once_and_python_goes_on(run):
    code = """
import threading
threads = [threading.Thread(target=save, args=(1,)) for _ in range(3)]
for thread in threads: thread.start()
until(stub.stub_load_waits)
stub.stub_load()
for thread in threads: thread.join()
print(ops.flush(60), stub_cuda.counted("loads"))
"""
    assert run(WARM + code, STUB_CUDA_LOAD="held") == "True 1\n"


def test_the_background_waits_for_a_context_and_makes_none(run):
    """Not even the driver is initialised: the process may still fork, or choose a device."""
    code = """
from fd_postproc.core import _save
looks, devices_in_use = [], _save.devices_in_use
_save.devices_in_use = lambda: looks.append(1) or devices_in_use()

def looked():
    # The thread has looked twice from now on.
    seen = len(looks)
    until(lambda: len(looks) > seen + 1)

kernel_warmup.begin()
looked()
active, flags, context = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
print(stub.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)))
assert stub.cuInit(0) == 0
looked()
print(stub_cuda.counted("loads"))
stub.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
until(lambda: stub_cuda.counted("loads") == 1)
x = stub_cuda.Exchange(np.array([[7]]), device=1)
ops.save_output(x, FLAG, ZERO, 0, False)
print(ops.flush(60), stub_cuda.counted("loads"))
stub.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
print(active.value)
"""
    assert run(WARM + code) == "3\n0\nTrue 1\n0\n"
    assert received(1) == [7]


@each("failure", ["cuInit:1:999", "cuModuleLoadData:0:2", "cuDeviceGetCount:0:100"])
def test_what_goes_wrong_in_the_background_is_the_first_saves(failure, run):
    """Nothing is raised or printed, and a save still works if the driver does."""
    code = """
import threading
context = ctypes.c_void_p()
assert stub.cuInit(0) == 0 and stub.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
kernel_warmup.begin()
until(lambda: not any(thread.name == "fd_postproc-warmup" for thread in threading.enumerate()))
told = error_of(save, 1)
print(told)
"""
    told = run(WARM + code, STUB_CUDA_FAIL=failure, STUB_CUDA_CUBINS="0")
    assert told == "none\n" or "cuInit" in told


def test_the_background_ends_when_it_is_told(run):
    code = """
import threading
kernel_warmup.begin()
kernel_warmup.begin()
names = [thread.name for thread in threading.enumerate()]
print(names.count("fd_postproc-warmup"))
kernel_warmup.end()
until(lambda: not any(thread.name == "fd_postproc-warmup" for thread in threading.enumerate()))
"""
    assert run(WARM + code) == "1\n"


GROWING = """
import threading
os.environ["FD_POSTPROC_CUDA_BUFFERS"] = "3"
BIG = fp.Layout(max_batch=20000)  # whose longest message is one of 80 kB

def put(x, layout=fp.GPU, device=0):
    ops.save_output(stub_cuda.Exchange(np.array([[x]]), device=device), FLAG, ZERO, 0, False, layout=layout)

from tests.lib.waiting import until
"""


def test_buffers_grow_at_once_and_old_ones_are_freed_later(run):
    code = """
for n in range(4): put(n)
small, made = stub_cuda.counted("pinned"), stub_cuda.counted("allocations")
put(4, BIG)
big = stub_cuda.counted("pinned")
for n in range(5, 9): put(n, BIG if n % 2 else fp.GPU)
print(stub_cuda.counted("allocations") - made, big > small, stub_cuda.counted("pinned") == big)
ops.flush(60)
until(lambda: stub_cuda.counted("pinned") == big - small)
put(9, BIG)
print(ops.flush(60), stub_cuda.counted("allocations") - made)
"""
    assert run(GROWING + code) == "1 True True\nTrue 1\n"
    assert received(10) == list(range(10))


def test_others_save_while_buffers_are_made(run):
    """Making them takes long, and the lock of the ring is free meanwhile."""
    code = """
put(0)
ops.flush(60)
begun = stub_cuda.counted("allocations begun")
stub.stub_slow_allocation(ctypes.c_int64(-1))
thread = threading.Thread(target=put, args=(2, BIG))
thread.start()
until(lambda: stub_cuda.counted("allocations begun") > begun)
put(1)
print(ops.flush(60), thread.is_alive())
stub.stub_slow_allocation(ctypes.c_int64(0))
thread.join()
print(ops.flush(60))
"""
    assert run(GROWING + code) == "True True\nTrue\n"
    assert received(3) == [0, 1, 2]


def test_calls_that_fail_when_buffers_grow(run):
    """The call raises, and the next one works; what cannot be freed is tried again."""
    code = """
put(1)
ops.flush(60)
small = stub_cuda.counted("pinned")
for call in b"cuMemHostAlloc", b"cuMemHostGetDevicePointer", b"cuThreadExchangeStreamCaptureMode":
    stub.stub_fail(call, 0, 2)
    print(error_of(put, 2, BIG))
stub.stub_fail(b"cuMemFreeHost", 0, 2)
put(2, BIG)
ops.flush(60)
big = stub_cuda.counted("pinned") - small
until(lambda: stub_cuda.counted("pinned") == big)
stub.stub_fail(b"cuEventCreate", 1, 2)
print(error_of(put, 3, fp.GPU, 1))
put(3, fp.GPU, 1)
print(ops.flush(60), stub_cuda.counted("events"))
"""
    told = run(GROWING + code).splitlines()
    assert [text.split(":")[1].strip() for text in told[:3]] == [
        "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuThreadExchangeStreamCaptureMode"
    ]  # fmt: skip
    assert told[3].startswith("CudaError: cuEventCreate")
    assert told[4] == "True 6"
    assert received(3) == [1, 2, 3]
