"""Loading the kernel: which form of it, in the background, and without holding Python up."""

from tests.lib.device_saves import received
from tests.lib.rows import each

LOADS = "save(1)\nprint(ops.flush(60), stub.stub_module_loads())"


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


def test_python_goes_on_while_the_kernel_is_loaded(run):
    code = """
import threading
thread = threading.Thread(target=save, args=(1,))
thread.start()
steps = 0
while thread.is_alive():
    time.sleep(0.001)
    steps += 1
print(ops.flush(60), steps > 1)
"""
    assert run(code, STUB_CUDA_LOAD_US="500000") == "True True\n"


def test_two_threads_load_it_once(run):
    code = """
import threading
threads = [threading.Thread(target=save, args=(1,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(ops.flush(60), stub.stub_module_loads())
"""
    assert run(code, STUB_CUDA_LOAD_US="100000") == "True 1\n"


WARM = """
from fd_postproc.fastdeploy.worker import warmup
from tests.lib.waiting import until
"""


def test_the_background_waits_for_a_context_and_makes_none(run):
    """Not even the driver is initialised: the process may still fork, or choose a device."""
    code = """
warmup.begin()
time.sleep(0.3)
active, flags, context = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
print(stub.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)))
assert stub.cuInit(0) == 0
time.sleep(0.3)
print(stub.stub_module_loads())
stub.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
until(lambda: stub.stub_module_loads() == 1)
x = stub_cuda.Exchange(np.array([[7]]), device=1)
ops.save_output(x, FLAG, ZERO, 0, False)
print(ops.flush(60), stub.stub_module_loads())
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
warmup.begin()
until(lambda: not any(thread.name == "fd_postproc-warmup" for thread in threading.enumerate()))
told = error_of(save, 1)
print(told)
"""
    told = run(WARM + code, STUB_CUDA_FAIL=failure, STUB_CUDA_CUBINS="0")
    assert told == "none\n" or "cuInit" in told


def test_the_background_ends_when_it_is_told(run):
    code = """
import threading
from tests.lib.rows import each
warmup.begin()
warmup.begin()
names = [thread.name for thread in threading.enumerate()]
print(names.count("fd_postproc-warmup"))
warmup.end()
until(lambda: not any(thread.name == "fd_postproc-warmup" for thread in threading.enumerate()))
"""
    assert run(WARM + code) == "1\n"
