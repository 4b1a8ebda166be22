# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Steps, and the way from a message to a step.

Bytes are understood in ``wire.h`` and the headers above it, queues in ``sysv.h``; the files included here,
one idea each, own the memory, hold or drop the GIL, and turn both into Python objects.  They are one
translation unit, so that calls between them are direct.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_F_CONTIGUOUS, PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE,
    PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.slice cimport PySlice_AdjustIndices
from libc.math cimport isnan
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport getenv
from libc.string cimport memcmp, memcpy, memset, strpbrk

from fd_postproc.headers.counter cimport fdc_add, fdc_read, fdc_set
from fd_postproc.headers.dlpack cimport (
    FDL_BOOL, FDL_CAPSULE, FDL_CPU, FDL_CUDA, FDL_FLOAT, FDL_INT, FDL_MANAGED, FDL_PINNED, fdl_exchange,
    fdl_is_contiguous, fdl_tensor,
)
from fd_postproc.headers.frames cimport (
    FDF_LEAST_LIMIT, FDF_MORE, FDF_NO_MEMORY, FDF_REFUSED, FDF_WHOLE, fdf_accept, fdf_assembly, fdf_begin,
    fdf_cut, fdf_free, fdf_piece, fdf_piece_size, fdf_sending,
)
from fd_postproc.headers.pack cimport (
    FDP_BATCH, FDP_COLUMNS, FDP_FIRST, FDP_FIRST_TOPK, FDP_ID_WIDE, FDP_NO_ROW, FDP_RANK_WIDE,
    FDP_SAVE_OUTPUT, FDP_SAVE_OUTPUT_TOPK, FDP_SPECULATE, FDP_SPECULATE_TOPK, FDP_TOKEN_WIDE, FDP_TOO_MANY,
    FDP_TOO_NARROW, fdp_fault, fdp_plan, fdp_settled, fdp_source, fdp_write,
)
from fd_postproc.headers.sysv cimport (
    E2BIG, EAGAIN, EINTR, EINVAL, ENOMSG, fds_forks, fds_give_back, fds_limit, fds_now, fds_pages, fds_peek,
    fds_put, fds_put_wait, fds_stat, fds_status, fds_take, fds_take_cut, fds_wait, fds_wait_any,
    fds_watch_forks,
)
from fd_postproc.headers.wire cimport (
    FDW_BATCH, FDW_COLUMNS, FDW_COMPACT, FDW_COUNT, FDW_FIELD_CHANNEL, FDW_FIELD_MAGIC, FDW_FIELD_VERSION,
    FDW_FLAG, FDW_FLAG_DRAFT, FDW_FRAGMENT, FDW_LEGACY, FDW_LENGTH, FDW_MTYPE_COMPACT, FDW_MTYPE_STOCK,
    FDW_NUMBER, FDW_PACKED, FDW_PLAIN, FDW_ROWS, FDW_SPEC, FDW_SPEC_TOPK, FDW_TOKEN, FDW_TOPK,
    fdw_block, fdw_block_in, fdw_block_size, fdw_counts_may_be_0, fdw_draft, fdw_fault, fdw_fill, fdw_gather,
    fdw_geometry, fdw_geometry_of, fdw_has_logprobs, fdw_is_flag, fdw_layout, fdw_longest_frame, fdw_message,
    fdw_open, fdw_open_frame, fdw_plan_step, fdw_rank_elements, fdw_refuse, fdw_score_elements, fdw_step,
    fdw_tensors, fdw_token_elements, fdw_width, fdw_write_step,
)

import math
import os
import sys

# Not a promise that nobody has kept: the flags that guard a Receiver or Sender are set under the GIL.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "fd_postproc needs the GIL, which PYTHON_GIL=0 or -X gil=0 keeps off: leave them out, and Python "
        "turns it on for this import")

from . import aio, arrays, checks, queues, tensors
from .errors import MalformedMessage, QueueError, ReceiverBusy, SenderBusy, queue_error, too_big
from .layout import GPU, Layout

if fds_watch_forks() != 0:
    raise MemoryError

include "core/names.pxi"
include "core/lists.pxi"
include "core/part.pxi"
include "core/step.pxi"
include "core/logprobs.pxi"
include "core/codec.pxi"
include "core/receiver.pxi"
include "core/host.pxi"
include "core/device.pxi"
include "core/tensors.pxi"
include "core/sender.pxi"
