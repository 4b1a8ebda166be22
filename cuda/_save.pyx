# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Messages from tensors on a CUDA device: the driver, the ring of buffers, and the sender thread behind it.

For `fd_postproc.ops`, which turns what is told here into exceptions and words.  There is one ring in a
process, made at the first save: messages leave in the order of the saves, whatever their queue and device.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, getenv
from libc.string cimport memcmp, memcpy, memset, strcmp, strcpy, strlen
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer)
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport PyObject

from fd_postproc.headers.pack cimport fdp_channel, fdp_fault, fdp_source
from fd_postproc.headers.counter cimport fdc_add, fdc_read
from fd_postproc.headers.sysv cimport fds_forks, fds_now, fds_watch_forks
from fd_postproc.headers.wire cimport FDW_COMPACT, FDW_LEGACY, fdw_geometry_of, fdw_layout

import os
import threading

from fd_postproc import queues
from fd_postproc._core import _CHANNEL_NUMBERS, _DIALECT_NUMBERS, _OP_NUMBERS, _REASONS, HostInput
from fd_postproc.errors import CudaError
from fd_postproc.tensors import ROLES

if fds_watch_forks() != 0:
    raise MemoryError

include "_driver.pxi"
include "_ring.pxi"
include "_lane.pxi"
include "_job.pxi"
include "_side.pxi"
include "_again.pxi"
