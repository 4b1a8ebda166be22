# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False, binding=False
"""The floor: what the same work costs in C that checks nothing.

Each method is called from Python as the functions it is compared with are, so both pay for one call.
Give these objects the messages they were told of and no others: they would read past the end.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fd_postproc.headers.pack cimport fdp_source
from fd_postproc.headers.sysv cimport fds_put_wait, fds_take
from fd_postproc.headers.wire cimport (
    FDW_PACKED, FDW_PLAIN, FDW_SPEC, FDW_SPEC_TOPK, FDW_TOPK, fdw_geometry, fdw_geometry_of, fdw_layout,
    fdw_tensors,
)

cdef extern from "_floor.h":
    ctypedef struct flr_shape:
        fdw_geometry at
        int channel
        int32_t batch
        int32_t rows
        int32_t cols
    void *flr_rows(const flr_shape *s, const uint8_t *data) nogil
    object flr_counted(object call)

cdef extern from "_stock.h" nogil:
    int stk_save_output(int msqid, const fdp_source *inputs)
    int stk_save_output_topk(int msqid, const fdp_source *inputs)
    int stk_speculate_save_output(int msqid, const fdp_source *inputs)
    int stk_speculate_save_output_topk(int msqid, const fdp_source *inputs)
    int64_t stk_get_output(int msqid, const fdw_tensors *to, bint wait)
    int64_t stk_get_output_topk(int msqid, const fdw_tensors *to, bint wait)
    int64_t stk_speculate_get_output(int msqid, const fdw_tensors *to, bint wait)
    int64_t stk_speculate_get_output_topk(int msqid, const fdw_tensors *to, bint wait)

cdef dict _CHANNELS = {"plain": FDW_PLAIN, "topk": FDW_TOPK, "spec": FDW_SPEC, "spec_topk": FDW_SPEC_TOPK}


@cython.final
cdef class _Buffer:
    """A message and the queue that it is taken from or put into.

    Parameters
    ----------
    msqid : int
    capacity : int
        Payload bytes of the longest message.
    """

    cdef int msqid
    cdef int64_t capacity
    cdef long *message

    def __cinit__(self, int msqid, int64_t capacity):
        self.msqid = msqid
        self.capacity = capacity
        self.message = <long *>PyMem_RawMalloc(sizeof(long) + capacity)
        if self.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.message)

    cdef int64_t take(self) noexcept nogil:
        return fds_take(self.msqid, self.message, self.capacity)

    cdef const uint8_t *payload(self) noexcept nogil:
        return <const uint8_t *>(self.message + 1)


@cython.final
cdef class Taker:
    """Takes a message of one kind from a queue, and copies its accepted rows.

    Parameters
    ----------
    step : Step
        What the message holds.
    layout : Layout
    msqid : int
    capacity : int
        Payload bytes of the longest message.
    """

    cdef flr_shape shape
    cdef _Buffer buffer

    def __init__(self, step, layout, int msqid, int64_t capacity):
        cdef fdw_layout c
        c.max_batch, c.top_k, c.max_draft, c.spec_batch = (
            layout.max_batch, layout.top_k, layout.max_draft, layout.spec_batch)
        self.shape.channel = _CHANNELS[step.channel]
        self.shape.batch = step.batch
        self.shape.rows = step.rows
        self.shape.cols = step.cols
        self.shape.at = fdw_geometry_of(&c, self.shape.channel, FDW_PACKED, step.cols)
        self.buffer = _Buffer(msqid, capacity)

    def take(self):
        """One message: its rows are copied and freed.  Returns its payload bytes, or minus errno."""
        cdef int64_t n
        with nogil:
            n = self.buffer.take()
            if n >= 0:
                free(flr_rows(&self.shape, self.buffer.payload()))
        return n

    def taken(self):
        """The payload of the last message, as far as `capacity` reaches."""
        return PyBytes_FromStringAndSize(<const char *>self.buffer.payload(), self.buffer.capacity)


cdef uintptr_t _numbers(dict arrays, str role):
    """Address of an array's numbers; 0 if there is none."""
    return arrays[role].__array_interface__["data"][0] if role in arrays else 0


@cython.final
cdef class Stock:
    """FastDeploy's save op of a channel, restated; see _stock.h.

    Parameters
    ----------
    channel : str
    arrays : dict of str to numpy.ndarray
        What `cases.Case.inputs` gives: ``tokens`` int64 (batch, width, which is 6 or more on ``spec``), and
        where the channel has them ``ids`` int64 and ``scores`` float32 (rows, cols), ``ranks`` int64, and
        per request ``counts``, ``offsets``, ``decoded``, ``preempted`` int32, ``prompts`` int64.  All
        contiguous.
    msqid : int
    """

    cdef fdp_source inputs
    cdef dict arrays  # owns what inputs points to
    cdef int channel
    cdef int msqid

    def __init__(self, channel, dict arrays not None, int msqid):
        self.arrays = arrays
        self.channel = _CHANNELS[channel]
        self.msqid = msqid
        self.inputs.tokens = <const int64_t *>_numbers(arrays, "tokens")
        self.inputs.ids = <const int64_t *>_numbers(arrays, "ids")
        self.inputs.scores = <const float *>_numbers(arrays, "scores")
        self.inputs.ranks = <const int64_t *>_numbers(arrays, "ranks")
        self.inputs.counts = <const int32_t *>_numbers(arrays, "counts")
        self.inputs.offsets = <const int32_t *>_numbers(arrays, "offsets")
        self.inputs.decoded = <const int32_t *>_numbers(arrays, "decoded")
        self.inputs.prompts = <const int64_t *>_numbers(arrays, "prompts")
        self.inputs.preempted = <const int32_t *>_numbers(arrays, "preempted")
        self.inputs.batch, self.inputs.width = arrays["tokens"].shape
        self.inputs.cols = arrays["ids"].shape[1] if "ids" in arrays else 1
        self.inputs.stop_flag = 1
        self.inputs.flag = 3

    def save(self):
        """Fill the message and send it.  Returns 0, or minus errno."""
        cdef int status
        with nogil:
            if self.channel == FDW_PLAIN:
                status = stk_save_output(self.msqid, &self.inputs)
            elif self.channel == FDW_TOPK:
                status = stk_save_output_topk(self.msqid, &self.inputs)
            elif self.channel == FDW_SPEC:
                status = stk_speculate_save_output(self.msqid, &self.inputs)
            else:
                status = stk_speculate_save_output_topk(self.msqid, &self.inputs)
        return status


@cython.final
cdef class StockGet:
    """FastDeploy's get op of a channel, restated; see _stock.h.

    Parameters
    ----------
    channel : str
    tensors : tuple of numpy.ndarray
        As large as the channel's get op wants them: int64 tokens, and where the channel has them float32
        scores and int64 ranks.
    msqid : int
    """

    cdef fdw_tensors to
    cdef tuple tensors  # owns what `to` points to
    cdef int channel
    cdef int msqid

    def __init__(self, channel, tuple tensors not None, int msqid):
        self.tensors = tensors
        self.channel = _CHANNELS[channel]
        self.msqid = msqid
        addresses = [tensor.__array_interface__["data"][0] for tensor in tensors] + [0, 0]
        self.to.tokens = <int64_t *><uintptr_t>addresses[0]
        self.to.scores = <float *><uintptr_t>addresses[1]
        self.to.ranks = <int64_t *><uintptr_t>addresses[2]

    def get(self):
        """Take a message.  Returns its payload bytes, or minus errno."""
        cdef int64_t got
        with nogil:
            if self.channel == FDW_PLAIN:
                got = stk_get_output(self.msqid, &self.to, False)
            elif self.channel == FDW_TOPK:
                got = stk_get_output_topk(self.msqid, &self.to, False)
            elif self.channel == FDW_SPEC:
                got = stk_speculate_get_output(self.msqid, &self.to, False)
            else:
                got = stk_speculate_get_output_topk(self.msqid, &self.to, False)
        return got


@cython.final
cdef class Putter:
    """Copies a payload into a message buffer and sends it.

    Parameters
    ----------
    payload : bytes
    mtype, msqid : int
    """

    cdef bytes payload
    cdef _Buffer buffer

    def __init__(self, bytes payload not None, long mtype, int msqid):
        self.payload = payload
        self.buffer = _Buffer(msqid, len(payload))
        self.buffer.message[0] = mtype

    def put(self):
        """One message.  Returns 0, or minus errno."""
        cdef int status
        cdef const char *data = PyBytes_AS_STRING(self.payload)
        cdef _Buffer to = self.buffer
        with nogil:
            memcpy(to.message + 1, data, to.capacity)
            status = fds_put_wait(to.msqid, to.message, to.capacity, 0, -1)
        return status


@cython.final
cdef class Drain:
    """Takes messages from a queue into one buffer and does nothing with them.

    Parameters
    ----------
    msqid : int
    capacity : int
        Payload bytes of the longest message.
    """

    cdef _Buffer buffer

    def __init__(self, int msqid, int64_t capacity):
        self.buffer = _Buffer(msqid, capacity)

    def take(self):
        """One message.  Returns its payload bytes, or minus errno if there is none."""
        cdef int64_t n
        with nogil:
            n = self.buffer.take()
        return n

    def take_copy(self):
        """The same, with the payload copied into a block of memory and that freed."""
        cdef int64_t n
        cdef void *block
        with nogil:
            n = self.buffer.take()
            if n >= 0:
                block = malloc(n)
                memcpy(block, self.buffer.payload(), n)
                free(block)
        return n

    def taken(self, Py_ssize_t n):
        """(payload, mtype) of the last message, whose length was n."""
        return PyBytes_FromStringAndSize(<const char *>self.buffer.payload(), n), self.buffer.message[0]


def counted(call):
    """Call something where `instructions` counts."""
    return flr_counted(call)
