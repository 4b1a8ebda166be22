"""A real CUDA driver through ctypes: memory, streams and captures, without any framework.

`use` puts it instead of the stub, so that the stub's tensors (`stub_cuda`) live on a real device.  With
``FD_POSTPROC_TEST_DRIVER``, the path of another library, that one is taken for the driver: the tests of this
are tested on the stub.
"""

import ctypes
import os
import time

from tests.lib import stub_cuda

NON_BLOCKING, GLOBAL = 1, 0
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@_HOST_FUNCTION
def _sleep(microseconds):
    time.sleep((microseconds or 0) / 1e6)


class Driver:
    """What the stub offers the tests, on a real device."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("FD_POSTPROC_TEST_DRIVER", "libcuda.so.1"))
        self.contexts = {}
        self.call("cuInit", 0)
        self.current(0)

    def call(self, name, *arguments):
        """A driver function; RuntimeError if it fails."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def number(self, name, *arguments):
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def current(self, device):
        """Make a device's primary context current in this thread."""
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number("cuDeviceGet", device))
            self.contexts[device] = context
        self.call("cuCtxSetCurrent", self.contexts[device])

    def name(self):
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, self.number("cuDeviceGet", 0))
        return text.value.decode()

    # What stub_cuda.Memory asks for.

    def stub_alloc(self, size, device=0):
        address = ctypes.c_uint64()
        self.current(device)
        self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        self.current(0)
        return address.value

    def stub_free(self, address):
        self.library.cuMemFree_v2(ctypes.c_uint64(address.value))  # called by __del__: nobody to tell

    def stub_put(self, to, array, size):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(to.value), array, size)

    def stub_get(self, to, address, size, stream, device):
        self.current(device)
        self.call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(address.value), size, stream)
        self.call("cuStreamSynchronize", stream)
        self.current(0)

    def stub_put_later(self, to, array, size, stream):
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to.value), array, size, stream)

    # Streams.

    def stub_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream.value

    def busy(self, stream, microseconds):
        """Work on a stream that takes so long."""
        self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), _sleep, ctypes.c_void_p(int(microseconds)))

    # Times, for .ci/gpu-run.

    def event(self):
        """An event that keeps the time."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event, stream=None):
        self.call("cuEventRecord", event, ctypes.c_void_p(stream))

    def elapsed_us(self, begin, end):
        """Microseconds between two recorded events; waits for the second."""
        milliseconds = ctypes.c_float()
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1e3

    def begin_capture(self, stream):
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), GLOBAL)

    def end_capture(self, stream):
        """0, or the error of a capture that was spoilt."""
        graph = ctypes.c_void_p()
        return self.library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))


_driver = None


def use():
    """The driver, in the stub's place.

    Raises
    ------
    OSError, RuntimeError
        If there is none, or no device.
    """
    global _driver
    if _driver is None:
        _driver = stub_cuda._loaded = Driver()
    return _driver
