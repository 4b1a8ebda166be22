"""The kernel body of ``cuda/pack.h``, compiled by the host's C compiler and run thread by thread."""

import ctypes
import functools
from dataclasses import dataclass, field

import numpy as np

from fd_postproc import Layout
from tests.lib import c_library

OPS = [  # enum fdp_op
    "save_output",
    "save_output_topk",
    "speculate_save_output",
    "speculate_save_output_topk",
    "mtp_save_first_token",
    "mtp_save_first_token_with_topk",
]
DIALECTS = ["legacy", "packed", "compact"]  # enum fdw_dialect
ROLES = {  # in the order of fdk_job; the dtype that fdp_source has
    "tokens": np.int64,
    "ids": np.int64,
    "scores": np.float32,
    "ranks": np.int64,
    "counts": np.int32,
    "offsets": np.int32,
    "decoded": np.int32,
    "prompts": np.int64,
    "preempted": np.int32,
    "steps": np.int64,
}
TYPES = {np.dtype(np.int64): 0, np.dtype(np.int32): 1, np.dtype(np.float32): 2}  # enum fdk_type
REASONS = ["too many", "too narrow", "no row", "token wide", "id wide", "rank wide", "batch", "columns"]
NOT_RUN, REFUSED = -2, -1
MARGIN = 64  # bytes behind the longest message


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *[(name, ctypes.c_int64) for name in ("row", "col", "type")]]


class _Call(ctypes.Structure):
    _fields_ = [
        ("layout", ctypes.c_int32 * 4),
        *[
            (name, ctypes.c_int32)
            for name in ["op", "dialect", "batch", "cols", "stop_flag", "flag", "skip_prefill", "capacity"]
        ],
        ("width", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("seq", ctypes.c_uint64),
        ("sender", ctypes.c_uint64),
        ("service", ctypes.c_uint32),
        ("on_host", ctypes.c_int64),
        ("arrays", _Array * len(ROLES)),
        ("contiguous", ctypes.c_void_p * len(ROLES)),
        ("live_batch", ctypes.c_void_p),
        ("not_need_stop", ctypes.c_void_p),
    ]


class _Fault(ctypes.Structure):
    _fields_ = [("reason", ctypes.c_int32), *[(name, ctypes.c_int64) for name in ("index", "value", "bound")]]

    def values(self):
        return REASONS[self.reason], self.index, self.value, self.bound


class _Result(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("length", "wide")],
        ("fault", _Fault),
        *[(name, ctypes.c_int32) for name in ("batch", "rows")],
        ("spare", ctypes.c_int64),
    ]


@functools.cache
def library():
    emulation = c_library.library("kernel_emulation")
    emulation.emu_capacity.restype = ctypes.c_int64
    emulation.emu_on_cpu.restype = ctypes.c_int64
    return emulation


@dataclass
class Outcome:
    """What a packer left behind: ``buffer`` is all that it could write to, ``length`` the message's bytes.

    fault : (reason, index, value, bound) if the step is refused, by numbers that decide where something lies.
    wide : (reason, index) of a number that is sent and does not fit 32 bits.
    """

    buffer: bytes
    length: int
    fault: tuple | None = None
    wide: tuple | None = None


@dataclass
class Call:
    """One call of a save op.

    arrays : for each role the array that the kernel reads, of any strides, int32 or int64.
    on_host : roles whose arrays are in host memory; if all are that decide, the host does.
    """

    op: str
    dialect: str
    layout: Layout
    arrays: dict[str, np.ndarray]
    batch: int
    stop_flag: int = 1
    flag: int = 3
    skip_prefill: bool = True
    seq: int = 0
    sender: int = 0
    service: int = 0
    live_batch: np.ndarray | None = None
    not_need_stop: np.ndarray | None = None
    on_host: tuple[str, ...] = ()
    decided: bool = False
    _keep: list = field(default_factory=list)

    def _c_call(self):
        c = _Call()
        layout = self.layout
        c.layout[:] = [layout.max_batch, layout.top_k, layout.max_draft, layout.spec_batch]
        c.op, c.dialect = OPS.index(self.op), DIALECTS.index(self.dialect)
        c.batch = self.batch
        c.stop_flag, c.flag, c.skip_prefill = self.stop_flag, self.flag, self.skip_prefill
        c.seq, c.sender, c.service = self.seq, self.sender, self.service
        c.on_host = sum(1 << k for k, role in enumerate(ROLES) if role in self.on_host)
        tokens, ids = self.arrays["tokens"], self.arrays.get("ids")
        c.width = tokens.shape[1]
        c.cols, c.rows = (1, 0) if ids is None else (ids.shape[1], min(len(ids), len(self.arrays["ranks"])))
        for k, (role, dtype) in enumerate(ROLES.items()):
            if role not in self.arrays:
                continue
            array = self.arrays[role]
            strides = [stride // array.itemsize for stride in array.strides]
            c.arrays[k] = _Array(array.ctypes.data, *[*strides, 0][:2], TYPES[array.dtype])
            contiguous = np.ascontiguousarray(array, dtype)
            self._keep.append(contiguous)
            c.contiguous[k] = contiguous.ctypes.data
        for name in ("live_batch", "not_need_stop"):
            if getattr(self, name) is not None:
                setattr(c, name, getattr(self, name).ctypes.data)
        c.capacity = library().emu_capacity(ctypes.byref(c))
        return c

    def _noise(self, size):
        return np.random.default_rng(self.seq).integers(0, 256, size, np.uint8)

    def on_cpu(self):
        """What the CPU's packer makes of it, in a buffer of noise."""
        c = self._c_call()
        if self.live_batch is not None:
            c.batch = int(self.live_batch[0])
        if self.not_need_stop is not None and not self.not_need_stop[0]:
            c.stop_flag = -c.stop_flag
        buffer = self._noise(c.capacity + MARGIN)
        fault = _Fault()
        length = library().emu_on_cpu(
            ctypes.byref(c), ctypes.c_void_p(buffer.ctypes.data), ctypes.byref(fault)
        )
        if length == -2:
            return Outcome(buffer.tobytes(), REFUSED, wide=fault.values()[:2])
        return Outcome(buffer.tobytes(), length, fault=fault.values() if length == REFUSED else None)

    def on_device(self, blocks=0, threads=256, seed=0):
        """What the kernel makes of it, in a buffer of the same noise.

        blocks : 0 for as many as a launch has.
        seed : of the order in which the threads run.
        """
        c = self._c_call()
        buffer = self._noise(c.capacity + MARGIN)
        fault, result = _Fault(), _Result()
        status = library().emu_on_device(
            ctypes.byref(c), blocks, threads, ctypes.c_uint64(seed), ctypes.c_void_p(buffer.ctypes.data),
            ctypes.byref(result), ctypes.byref(fault),
        )  # fmt: skip
        assert status != -2, "a thread wrote behind its block's shared memory"
        self.decided = status == 1
        if status == -1:
            return Outcome(buffer.tobytes(), REFUSED, fault=fault.values())
        assert result.length != NOT_RUN
        if result.length == REFUSED:
            return Outcome(buffer.tobytes(), REFUSED, fault=result.fault.values())
        wide = (REASONS[result.wide & 255], result.wide >> 8) if result.wide else None
        return Outcome(buffer.tobytes(), result.length, wide=wide)
