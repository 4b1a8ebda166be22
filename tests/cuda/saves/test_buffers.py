"""Buffers of a larger size: made at once, without holding anybody up; the old ones are freed later."""

from tests.lib.device_saves import received

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
small, made = stub.stub_live_pinned(), stub.stub_count(0)
put(4, BIG)
big = stub.stub_live_pinned()
for n in range(5, 9): put(n, BIG if n % 2 else fp.GPU)
print(stub.stub_count(0) - made, big > small, stub.stub_live_pinned() == big)
ops.flush(60)
until(lambda: stub.stub_live_pinned() == big - small)
put(9, BIG)
print(ops.flush(60), stub.stub_count(0) - made)
"""
    assert run(GROWING + code) == "1 True True\nTrue 1\n"
    assert received(10) == list(range(10))


def test_others_save_while_buffers_are_made(run):
    """Making them takes long, and the lock of the ring is free meanwhile."""
    code = """
put(0)
ops.flush(60)
begun = stub.stub_count(5)
stub.stub_slow_allocation(ctypes.c_int64(-1))
thread = threading.Thread(target=put, args=(2, BIG))
thread.start()
until(lambda: stub.stub_count(5) > begun)
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
small = stub.stub_live_pinned()
for call in b"cuMemHostAlloc", b"cuMemHostGetDevicePointer", b"cuThreadExchangeStreamCaptureMode":
    stub.stub_fail(call, 0, 2)
    print(error_of(put, 2, BIG))
stub.stub_fail(b"cuMemFreeHost", 0, 2)
put(2, BIG)
ops.flush(60)
big = stub.stub_live_pinned() - small
until(lambda: stub.stub_live_pinned() == big)
stub.stub_fail(b"cuEventCreate", 1, 2)
print(error_of(put, 3, fp.GPU, 1))
put(3, fp.GPU, 1)
print(ops.flush(60), stub.stub_live_events())
"""
    told = run(GROWING + code).splitlines()
    assert [text.split(":")[1].strip() for text in told[:3]] == [
        "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuThreadExchangeStreamCaptureMode"
    ]  # fmt: skip
    assert told[3].startswith("CudaError: cuEventCreate")
    assert told[4] == "True 6"
    assert received(3) == [1, 2, 3]
