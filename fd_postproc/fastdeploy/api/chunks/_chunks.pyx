# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""The JSON of an API server's chunks, written in C, and what comes before it.

Each file that is included here has one idea: numbers as serialisers print them, the buffer that is written
into, texts of token ids made once, results out of msgpack, maps with known keys, arrays,
log-probabilities of chat, of completion and of the prompt, chunks by a template, plain
results, and new text out of new token ids.
"""
cimport cython
from cpython.dict cimport PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from fd_postproc.fastdeploy.events.counters import note

cdef extern from "Python.h":
    # Borrowed references, as bare pointers: Cython's own declarations would count them.
    PyObject *PyDict_GetItemWithError(object d, object key) except? NULL
    PyObject *PyList_GET_ITEM(object o, Py_ssize_t i) noexcept
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "fd_postproc/headers/json.h":
    ctypedef struct fdj_style:
        int least, most, plus, two
    ctypedef struct fdj_buffer:
        char *data
        size_t used, room
    enum:
        FDJ_POWER_MIN, FDJ_POWER_MAX
    uint64_t fdj_powers[1][2]
    int fdj_put(fdj_buffer *b, const char *text, size_t n) noexcept nogil
    size_t fdj_plain(const char *text, size_t n) noexcept nogil
    int fdj_string(fdj_buffer *b, const char *text, size_t n) noexcept nogil
    int fdj_integer(fdj_buffer *b, long long n) noexcept nogil
    int fdj_double(fdj_buffer *b, double value, const fdj_style *style) noexcept nogil

include "_numbers.pxi"
include "_writer.pxi"
include "_token_table.pxi"
include "_packed.pxi"
include "_map_layouts.pxi"
include "_arrays.pxi"
include "_scored_rows.pxi"
include "_chat_logprobs.pxi"
include "_completion_logprobs.pxi"
include "_prompt_logprobs.pxi"
include "_template.pxi"
include "_plain_results.pxi"
include "_token_bytes.pxi"
