"""Saves while another thread captures a CUDA graph: neither is disturbed by the other."""

from tests.lib.device_saves import received

CAPTURE = """
import threading
GLOBAL, THREAD_LOCAL, RELAXED = 1, 2, 3

class Capture:
    '''Another thread that captures a stream; `spoilt` is what the capture's end tells.'''

    def __init__(self, mode=GLOBAL, device=0, blocking=0):
        self.stream = ctypes.c_void_p(stub.stub_stream_of(device, blocking))
        self.mode, self.begun, self.enough = mode, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.capture)

    def capture(self):
        stub.stub_capture(self.stream, self.mode)
        self.begun.set()
        self.enough.wait()
        self.spoilt = stub.stub_capture(self.stream, 0)

    def __enter__(self):
        self.thread.start()
        self.begun.wait()
        return self

    def __exit__(self, *exc):
        self.enough.set()
        self.thread.join()

def put(x, device=0, **keywords):
    tensor = stub_cuda.Exchange(np.array([[x]]), device=device)
    ops.save_output(tensor, FLAG, ZERO, 0, False, **keywords)
"""


def test_a_capture_in_another_thread(run):
    """The kernel is loaded, events and buffers are made, events are waited for: the capture stays sound."""
    code = """
with Capture() as capture:
    put(1)
    put(2, device=1)
    put(3, layout=fp.Layout(max_batch=20000))
    print(ops.flush(60))
print(capture.spoilt, stub.stub_thread_mode(), stub.stub_depth())
"""
    assert run(CAPTURE + code, STUB_CUDA_DELAY_US="10000") == "True\n0 0 0\n"
    assert received(3) == [1, 2, 3]


def test_what_a_capture_forbids_is_waited_out(run):
    """No such error means that an event is lost."""
    code = """
save(0)
ops.flush(60)
for call, code in (b"cuEventSynchronize", 900), (b"cuEventSynchronize", 901), (b"cuEventRecord", 906):
    stub.stub_fail(call, 0, code)
    stub.stub_fail(call, 1, code)
    save(code)
    print(ops.flush(60))
for call in b"cuLaunchKernel", b"cuStreamIsCapturing":
    stub.stub_fail(call, 0, 906)
    save(906)
    print(ops.flush(60))
"""
    assert run(code) == "True\n" * 5
    assert received(6) == [0, 900, 901, 906, 906, 906]


def test_a_lost_event_is_still_one(run):
    code = """
save(0)
ops.flush(60)
for code in 899, 908:
    print(device.saves.extension.broken())
    stub.stub_fail(b"cuEventSynchronize", 0, code)
    broken = device.saves.extension.broken()
    print(error_of(save, 1) if broken else error_of(lambda: (save(1), ops.flush(60))))
"""
    told = run(code).splitlines()
    assert [told[0], told[2]] == ["False", "True"]
    assert "(899)" in told[1]
    assert "(899)" in told[3]


def test_the_legacy_stream_waits_for_the_capture_of_a_blocking_one(run):
    code = """
with Capture(blocking=1) as capture:
    put(2, device=1)  # its legacy stream is another one
    ops.flush(60)
    saved = threading.Thread(target=put, args=(1,))
    saved.start()
    saved.join(0.2)
    print(saved.is_alive())
saved.join(10)
print(saved.is_alive(), ops.flush(60), capture.spoilt)
"""
    assert run(CAPTURE + code) == "True\nFalse True 0\n"
    assert received(2) == [2, 1]


def test_a_thread_without_a_context(run):
    """A fresh thread has none; the driver would take the legacy stream for that of no device."""
    code = """
def work():
    for device in 1, 0, 1:
        put(device, device=device)
    depth.append(stub.stub_depth())
depth = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(ops.flush(60), depth)
"""
    assert run(CAPTURE + code) == "True [0]\n"
    assert received(3) == [1, 0, 1]
