# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Steps, and the way from a message to a step.

Bytes are understood in ``_wire.h``, queues in ``_sysv.h``; the files included here, one idea each, own the
memory, hold or drop the GIL, and turn both into Python objects.  They are one translation unit, so that
calls between them are direct.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.slice cimport PySlice_AdjustIndices
from libc.math cimport isnan
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from fd_postproc._sysv cimport (
    E2BIG, EINTR, ENOMSG, fds_now, fds_peek, fds_stat, fds_status, fds_take, fds_take_cut,
    fds_wait,
)
from fd_postproc._wire cimport (
    FDW_BATCH, FDW_COLUMNS, FDW_COUNT, FDW_LEGACY, FDW_LENGTH, FDW_MTYPE_STOCK, FDW_PACKED, FDW_PLAIN,
    FDW_SPEC, FDW_SPEC_TOPK, FDW_TOPK, fdw_block, fdw_block_in, fdw_block_size, fdw_draft, fdw_fault,
    fdw_fill, fdw_gather, fdw_geometry, fdw_geometry_of, fdw_has_logprobs, fdw_layout, fdw_message, fdw_open,
    fdw_plan, fdw_rank_elements, fdw_score_elements, fdw_step, fdw_tensors, fdw_token_elements, fdw_write,
)

from . import queues
from .errors import MalformedMessage, ReceiverBusy, queue_error
from .layout import GPU, Layout

include "_names.pxi"
include "_lists.pxi"
include "_step.pxi"
include "_codec.pxi"
include "_receiver.pxi"
