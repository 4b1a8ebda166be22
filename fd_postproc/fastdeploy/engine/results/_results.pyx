# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Makes a step's results in bulk.

The files included here, one idea each: arrays as bytes, what is known of FastDeploy, a result, which is
numbers and a template until other code reads it, and the batch loop that advances every request of a step.
From ``metrics/``: a step's sums for FastDeploy's counters, and the times of its stages.  From ``delivery/``:
messages, the stream interval, the hand-over in FastDeploy's scheduler.  They are no extension of their own:
they read a result's numbers.
"""
from cpython.object cimport PyObject

from collections import Counter
from os import urandom
from threading import Condition, Lock
from time import monotonic
from types import MemberDescriptorType, MethodType

from msgspec import Raw
from msgspec.msgpack import Encoder, encode

from fd_postproc.core.tensors import array_of

cdef extern from "Python.h":
    # Borrowed references, as bare pointers: Cython's own declarations would count them.
    PyObject *PyDict_GetItemWithError(object d, object key) except? NULL
    PyObject *PyList_GET_ITEM(object o, Py_ssize_t i) noexcept
    dict PyObject_GenericGetDict(object o, void *context)

include "_arrays.pxi"
include "_plan.pxi"
include "_result.pxi"
include "../metrics/_sums.pxi"
include "_loop.pxi"
include "../delivery/_messages.pxi"
include "../delivery/_interval.pxi"
include "../delivery/_handover.pxi"
include "../metrics/_stages.pxi"
