# Results from msgpack's bytes; their log-probabilities stay packed until they are read.
from cpython.float cimport PyFloat_FromDouble
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromLongLong, PyLong_FromUnsignedLongLong
from cpython.object cimport PyObject_RichCompare
from cpython.ref cimport Py_INCREF

cdef extern from "fd_postproc/headers/unpack.h":
    ctypedef struct fdu_bytes:
        const unsigned char *at
        const unsigned char *end
    ctypedef struct fdu_rows:
        const unsigned char *ids
        const unsigned char *scores
        size_t rows
    bint fdu_big_endian(fdu_bytes *b, size_t n, uint64_t *value) noexcept nogil
    bint fdu_integer(fdu_bytes *b, int64_t *value) noexcept nogil
    bint fdu_float(fdu_bytes *b, double *value) noexcept nogil
    bint fdu_list(fdu_bytes *b, size_t *count) noexcept nogil
    bint fdu_map(fdu_bytes *b, size_t *count) noexcept nogil
    bint fdu_text(fdu_bytes *b, const char **text, size_t *size) noexcept nogil
    bint fdu_logprobs(fdu_bytes *b, fdu_rows *rows) noexcept nogil
    bint fdu_extension(fdu_bytes *b, int type, const unsigned char **content, size_t *size) noexcept nogil

LAZY = ("top_logprobs", "draft_top_logprobs")
"""Keys of a result whose values stay packed."""

cdef str _top = LAZY[0], _draft = LAZY[1]
cdef bint _arrays_as_numpy = False


def give_arrays(bint as_numpy):
    """Choose whether arrays that came as one value become NumPy's; only if their readers accept that."""
    global _arrays_as_numpy
    _arrays_as_numpy = as_numpy


cdef enum:
    DEEPEST = 64     # levels of lists and maps


cdef object _unpacked(fdu_bytes *source, int depth, bint lazy):
    """The value that begins here, as msgpack returns it; Unknown if its type is not supported."""
    cdef int64_t integer
    cdef uint64_t large
    cdef double real
    cdef const char *text
    cdef size_t size, i
    cdef unsigned char kind
    cdef list values
    if source.at >= source.end:
        raise Unknown("a message of results that ends too early")
    kind = source.at[0]
    if kind == 0xC0 or kind == 0xC2 or kind == 0xC3:
        source.at += 1
        return None if kind == 0xC0 else kind == 0xC3
    if fdu_integer(source, &integer):
        return PyLong_FromLongLong(integer)
    if fdu_text(source, &text, &size):
        return PyUnicode_DecodeUTF8(text, size, NULL)
    if fdu_float(source, &real):
        return PyFloat_FromDouble(real)
    if depth > DEEPEST:
        raise Unknown("a message of results with too many levels")
    if fdu_list(source, &size):
        values = PyList_New(size)
        for i in range(size):
            value = _unpacked(source, depth + 1, lazy)
            Py_INCREF(value)
            PyList_SET_ITEM(values, i, value)
        return values
    if fdu_map(source, &size):
        return _unpacked_map(source, size, depth, lazy)
    if 0xC7 <= kind <= 0xC9 or 0xD4 <= kind <= 0xD8:
        return _array_from(source, lazy)
    if kind == 0xCF and fdu_big_endian(source, 8, &large):
        return PyLong_FromUnsignedLongLong(large)
    raise Unknown("a message of results with something else than numbers, texts, lists and maps")


cdef object _packed(fdu_bytes *source):
    """Log-probabilities, still packed; None if the value here is something else."""
    cdef const unsigned char *begin = source.at
    cdef fdu_rows rows
    if not fdu_logprobs(source, &rows):
        return None
    cdef PackedRows top = PackedRows.__new__(PackedRows)
    top.keep(begin, <size_t>(source.at - begin))
    top.rows, top.ids, top.scores = rows.rows, rows.ids - begin, rows.scores - begin
    return top


def unpack(bytes packed not None, bint lazy=True):
    """Unpack as ``msgpack.unpackb`` does; Unknown for what has to be unpacked by that.

    `lazy`: whether the values of keys in `LAZY` stay packed, where they are a result's log-probabilities.
    """
    cdef fdu_bytes source
    source.at = <const unsigned char *><const char *>packed
    source.end = source.at + len(packed)
    value = _unpacked(&source, 0, lazy)
    if source.at != source.end:
        raise Unknown("a message of results with something behind it")
    return value


@cython.final
@cython.no_gc
cdef class PackedRows:
    """Log-probabilities of a result: a read-only list of ids, scores and ranks, made when it is first read.

    The garbage collector does not see it: what it holds are numbers.
    """

    cdef unsigned char *packed
    cdef size_t size, rows
    cdef size_t ids, scores    # where the first of each begins
    cdef list lists

    def __dealloc__(self):
        PyMem_Free(self.packed)

    cdef int keep(self, const unsigned char *begin, size_t size) except -1:
        """Copy the bytes: one slow client's results must not keep the messages of all others."""
        self.packed = <unsigned char *>PyMem_Malloc(size)
        if self.packed == NULL:
            raise MemoryError
        memcpy(self.packed, begin, size)
        self.size = size
        return 0

    cdef list unpacked(self):
        cdef fdu_bytes source
        if self.lists is None:
            source.at, source.end = self.packed, self.packed + self.size
            self.lists = _unpacked(&source, 0, False)
        return self.lists

    def __sizeof__(self):
        return object.__sizeof__(self) + self.size

    def __len__(self):
        return 3 if self.lists is None else len(self.lists)

    def __iter__(self):
        return iter(self.unpacked())

    def __getitem__(self, place):
        return self.unpacked()[place]

    def index(self, value, *places):
        """As a list's."""
        return self.unpacked().index(value, *places)

    def count(self, value):
        """As a list's."""
        return self.unpacked().count(value)

    def __richcmp__(self, other, int kind):
        if isinstance(other, PackedRows):
            other = (<PackedRows>other).unpacked()
        return PyObject_RichCompare(self.unpacked(), other, kind)

    __hash__ = None

    def __repr__(self):
        return repr(self.unpacked())

    def __copy__(self):
        return _copy(self.unpacked())

    def __deepcopy__(self, memo):
        return _deepcopy(self.unpacked(), memo)

    def __reduce_ex__(self, protocol):
        return list, (self.unpacked(),)


from collections.abc import Sequence as _Sequence
from copy import copy as _copy, deepcopy as _deepcopy

_Sequence.register(PackedRows)
