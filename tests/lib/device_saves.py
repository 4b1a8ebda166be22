"""What the tests of save ops with tensors on a CUDA device share."""

from dataclasses import replace

import numpy as np

import fd_postproc as fp
from fd_postproc import ops
from tests import reference
from tests.lib.save_cases import CHANNELS
from tests.lib.saving import assert_same
from tests.lib.stub_cuda import Cupy, Exchange, Other, Paddle26, Torch

KINDS = [Cupy, Exchange, Other, Paddle26, Torch]
LAYOUT = fp.Layout(max_batch=32, top_k=5, max_draft=6, spec_batch=32)  # whose messages fit any limit
FLAG = np.array([True])
AT_ONCE = [
    "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
    "cuThreadExchangeStreamCaptureMode", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncGetAttribute",
    "cuStreamIsCapturing", "cuCtxGetCurrent", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuEventCreate",
    "cuLaunchKernel",
]  # fmt: skip
"""Calls of the driver that a save makes, and raises where they fail."""


def placed(inputs, kind, chosen=None, **keywords):
    """Inputs of a save op, on the device but for the flag and what is not chosen."""
    return {
        name: kind(array, **keywords)
        if name != "not_need_stop" and (chosen is None or name in chosen)
        else array
        for name, array in inputs.items()
    }


def same(compact, stock):
    """Whether two Steps say the same, though not in one dialect."""
    compact, stock = (reference.ReferenceStep.from_step(step) for step in (compact, stock))
    return replace(compact, dialect=stock.dialect, seq=None) == stock


def assert_message(queue, op, args, dialect):
    """The only message is what the reference makes of the host arguments."""
    assert ops.flush(60)
    channel = CHANNELS[op]
    payload, mtype = queue.take(channel)
    if dialect == "compact":
        assert (mtype, reference.FrameHeader.unpack(payload).features) == (2, 1)  # with a checksum
        expected = fp.decode(
            reference.save(op, *args, dialect="packed", layout=LAYOUT).payload, channel, layout=LAYOUT
        )
        found = fp.decode(payload, channel, mtype=2, layout=LAYOUT)
        assert same(found, expected)
        return
    assert_same((payload, mtype), reference.save(op, *args, dialect=dialect, layout=LAYOUT))


def save(x=5, preempted=0, **keywords):
    x = Exchange(np.array([[x]]))
    ops.save_output(x, FLAG, np.array([preempted], np.int32), 0, False, **keywords)


PRELUDE = """
import ctypes, os, sys, time
import numpy as np
os.environ.setdefault("FD_POSTPROC_CUDA", "1")
from tests.lib import stub_cuda
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


def received(n):
    """The tokens of n plain messages."""
    with fp.Receiver("plain") as receiver:
        return [receiver.receive(10).token_ids(0)[0] for _ in range(n)]
