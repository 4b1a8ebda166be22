"""What a save op with tensors on a CUDA device costs its caller, beside a driver that does nothing.

    python -m benchmarks.device_op

Needs a C compiler and no GPU.  Least of many medians, in microseconds: a busy machine disturbs it little.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import sysv_ipc

ROOT = Path(__file__).resolve().parent.parent
CUDA, HOST = 2, 1
CODES = {"int64": (0, 64), "int32": (0, 32), "float32": (2, 32), "bool": (6, 8)}


def build(folder):
    """The driver, before another one is opened."""
    built = Path(folder) / "libcuda.so.1"
    headers = ["-I", ROOT]
    name = "-Wl,-soname,libcuda.so.1"
    command = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        *headers,
        ROOT / "benchmarks" / "null_cuda.c",
        name,
        "-o",
        built,
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


def tensor_type(driver):
    """A class whose tensors answer as Paddle 3.3 and PyTorch 2.10 do."""
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.create_string_buffer(b"dlpack_exchange_api")

    class Tensor:
        __dlpack_c_exchange_api__ = new_capsule(
            ctypes.addressof(ctypes.c_int.in_dll(driver, "null_exchange")), name, None
        )
        kept_name = name

        def __init__(self, array, device):
            self.array, self.shape, self.dtype = array, array.shape, array.dtype
            rows, cols = (*array.shape, 1, 1)[:2]
            driver.null_tensor(
                ctypes.py_object(self), ctypes.c_void_p(array.ctypes.data), device, *CODES[str(array.dtype)],
                array.ndim, ctypes.c_int64(rows), ctypes.c_int64(cols),
            )  # fmt: skip

    return Tensor


def arguments(tensor, batch, cols):
    """Of speculate_save_output_topk, as FastDeploy gives them: numbers of requests in host memory."""
    rows = 2 * batch
    on_device = [
        np.zeros((batch, 6), np.int64), np.zeros((rows, cols), np.int64), np.zeros((rows, cols), np.float32),
        np.zeros(rows, np.int64),
    ]  # fmt: skip
    on_host = [
        np.full(batch, 2, np.int32), np.arange(0, rows, 2, dtype=np.int32), np.array([True]),
        np.ones((batch, 1), np.int32), np.ones((batch, 1), np.int64), np.zeros((batch, 1), np.int32),
    ]  # fmt: skip
    return [*[tensor(a, CUDA) for a in on_device], *[tensor(a, HOST) for a in on_host], 3, 0, False]


def measure(call, flush, rounds=60, each=40):
    """Microseconds of a call: the least of `rounds` medians."""
    found = []
    for _ in range(rounds):
        times = []
        for n in range(each):
            began = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - began)
            if n % 4 == 3:
                flush()  # so that no call waits for a buffer
        found.append(statistics.median(times))
    return min(found) / 1e3


def drain(queue):
    while True:
        try:
            queue.receive()
        except sysv_ipc.ExistentialError:
            return


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    os.environ["INFERENCE_MSG_QUEUE_ID"] = str(int.from_bytes(os.urandom(2), "little") + 70000)
    os.environ["FD_POSTPROC_DIALECT"] = "compact"
    with tempfile.TemporaryDirectory() as folder:
        driver = build(folder)
        from fd_postproc import ops, queues

        queue = sysv_ipc.MessageQueue(queues.locate("spec_topk"), sysv_ipc.IPC_CREX, mode=0o600)
        threading.Thread(target=drain, args=(queue,), daemon=True).start()
        try:
            tensor = tensor_type(driver)
            for batch, cols in (1, 1), (32, 21), (256, 21):
                args = arguments(tensor, batch, cols)
                op = measure(lambda args=args: ops.speculate_save_output_topk(*args), ops.flush)
                print(f"batch {batch:3}, {cols:2} columns: {op:5.1f} us")
        finally:
            queue.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
