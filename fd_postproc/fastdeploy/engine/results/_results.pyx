# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Makes a step's results in bulk.

The files included here, one idea each: objects that are made and copied field by field, arrays as bytes,
dictionaries made from a template, attributes that are made when they are read, outputs that stay numbers
until they are read, metrics that share what does not change from step to step, what is known of
FastDeploy, its counters, the batch loop that advances every request of a step, and its stages.  From
``delivery/``: messages packed without dictionaries, the stream interval, the hand-over in FastDeploy's
scheduler.  They are no extension of their own: they read outputs and metrics by offset, as they are made.
"""
from cpython.object cimport PyObject

from collections import Counter
from threading import Condition, Lock
from time import monotonic
from types import MemberDescriptorType, MethodType

from fd_postproc.core.tensors import array_of

cdef extern from "Python.h":
    # Borrowed references, as bare pointers: Cython's own declarations would count them.
    PyObject *PyDict_GetItemWithError(object d, object key) except? NULL
    PyObject *PyList_GET_ITEM(object o, Py_ssize_t i) noexcept
    PyObject *PyTuple_GET_ITEM(object o, Py_ssize_t i) noexcept
    dict PyObject_GenericGetDict(object o, void *context)
    void _set_tuple_item "PyTuple_SET_ITEM"(PyObject *target, Py_ssize_t i, PyObject *item) noexcept

include "_fields.pxi"
include "_arrays.pxi"
include "_dicts.pxi"
include "_lazy.pxi"
include "_outputs.pxi"
include "_moments.pxi"
include "_plan.pxi"
include "_sums.pxi"
include "_loop.pxi"
include "../delivery/_messages.pxi"
include "../delivery/_interval.pxi"
include "../delivery/_handover.pxi"
include "_stages.pxi"
