# Routed experts: an array that stays as bytes from the message to the base64 in the answer.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from fd_postproc.headers.packed_array cimport (
    FDY_TYPE, FDY_WORDS, fdy_array, fdy_base64, fdy_base64_size, fdy_open, fdy_word,
)

from base64 import b64encode as _b64encode
from importlib import import_module as _import
from os import urandom as _random
from sys import _getframe
from weakref import WeakValueDictionary as _Weak

cdef enum:
    NUMBERS = 3 << 13  # of a piece of base64, 256 KiB; a multiple of FDY_WORDS

ARRAY = FDY_TYPE
"""Type of msgpack's extensions that are arrays."""

cdef set _readers = set()


def read_arrays_by(codes):
    """Set the code objects that make base64 of routed experts and hand it to a stand-in alone."""
    _readers.clear()
    _readers.update(codes)


def arrays_waiting():
    """Number of arrays whose base64 stands in an answer that has not been sent."""
    return len(_encoded)


cdef object _packed_array(fdu_bytes *source, bint lazy):
    """An array that came as one value; lists of it where nothing stays packed."""
    cdef const unsigned char *content
    cdef size_t size
    cdef fdy_array array
    if not fdu_extension(source, FDY_TYPE, &content, &size) or not fdy_open(content, size, &array):
        raise Unknown("a message of results with something else than numbers, texts, lists and maps")
    if not (lazy and _arrays_packed):
        return _lists_of(&array)
    cdef PackedArray made = PackedArray.__new__(PackedArray)
    if _unpacking is not None and 2 * size >= <size_t>len(_unpacking):  # no copy of what is most of it anyway
        made.held, made.array = _unpacking, array
        return made
    made.held = PyBytes_FromStringAndSize(<const char *>content, size)
    fdy_open(<const unsigned char *>PyBytes_AS_STRING(made.held), size, &made.array)
    return made


def lists_of(content):
    """The nested lists of an array's bytes; for msgpack, where that unpacks the message."""
    cdef fdy_array array
    cdef bytes held = content
    if not fdy_open(<const unsigned char *>PyBytes_AS_STRING(held), len(held), &array):
        raise ValueError("bytes that are no array")
    return _lists_of(&array)


cdef list _lists_of(fdy_array *array):
    cdef int64_t next = 0
    return _level(array, 0, &next)


cdef list _level(fdy_array *array, int level, int64_t *next):
    cdef uint32_t i
    cdef list made = PyList_New(array.shape[level])
    cdef uint64_t word
    cdef double real
    for i in range(array.shape[level]):
        if level + 1 < array.dimensions:
            value = _level(array, level + 1, next)
        else:
            word = fdy_word(array, next[0])
            next[0] += 1
            if array.kind == c"f":
                memcpy(&real, &word, 8)
                value = PyFloat_FromDouble(real)
            else:
                value = PyLong_FromLongLong(<int64_t>word)
        Py_INCREF(value)
        PyList_SET_ITEM(made, i, value)
    return made


@cython.final
@cython.no_gc
cdef class PackedArray(Packed):
    """An array of a result: the nested lists that msgpack would have given.

    FastDeploy's serving code asks whether it is NumPy's, makes base64 of its bytes, and hands that to the
    answer's model.  To that code alone this says that it is, and gives a few bytes in place of all: a token,
    whose base64 the stand-in for the model recognises.
    """

    cdef bytes held
    cdef fdy_array array     # in these bytes
    cdef Encoded encoded     # what the token stands for

    cdef list unpacked(self):
        if self.lists is None:
            self.lists = _lists_of(&self.array)
        return self.lists

    @property
    def __class__(self):
        return _numpy_array() if _is_reader() else list

    def __getattr__(self, name):
        if name == "tobytes" and _is_reader():
            return self.token
        return getattr(self.unpacked(), name)

    def __len__(self):
        return self.array.shape[0] if self.lists is None else len(self.lists)

    def token(self):
        """Bytes whose base64 stands for that of all of it, as long as this object lives."""
        if self.lists is not None:  # maybe changed
            return _import("numpy").array(self.lists).tobytes()
        if self.encoded is None:
            self.encoded = Encoded.of(self.held, &self.array)
        return self.encoded.token


cdef bint _is_reader():
    return bool(_readers) and _getframe(0).f_code in _readers


cdef object _numpy_array():
    return _import("numpy").ndarray


@cython.final
@cython.no_gc
cdef class Encoded:
    """The base64 of an array as int64, which is written in pieces."""

    cdef bytes held
    cdef fdy_array array     # in these bytes
    cdef readonly bytes token
    cdef object __weakref__

    @staticmethod
    cdef Encoded of(bytes held, fdy_array *array):
        cdef Encoded made = Encoded.__new__(Encoded)
        made.held, made.array = held, array[0]
        made.token = b"fd_postproc array " + _random(18)
        _encoded[_b64encode(made.token).decode()] = made
        return made

    def __str__(self):
        cdef bytes made = PyBytes_FromStringAndSize(NULL, fdy_base64_size(self.array.count))
        fdy_base64(&self.array, 0, self.array.count, PyBytes_AS_STRING(made))
        return made.decode()


cdef object _encoded = _Weak()  # by the base64 of their tokens


cdef inline object _encoded_by(value):
    """What a text stands for; the text itself if it is none's token."""
    return _encoded.get(value, value) if len(value) == 48 and _encoded else value


@cython.final
cdef class _Base64(Part):
    """The JSON string of an array's base64."""

    cdef Encoded encoded

    @staticmethod
    cdef _Base64 of(Encoded encoded):
        cdef _Base64 made = _Base64.__new__(_Base64)
        made.encoded, made.count = encoded, encoded.array.count
        made.size = fdy_base64_size(made.count) + 2
        return made

    cdef bytes piece(self, _Writer writer):
        cdef fdy_array *array = &self.encoded.array
        cdef int64_t numbers = min(self.count - self.next, NUMBERS)
        if self.next > self.count:
            return None
        cdef bint first = self.next == 0, last = self.next + numbers == self.count
        cdef bytes made = PyBytes_FromStringAndSize(NULL, fdy_base64_size(numbers) + first + last)
        cdef char *at = PyBytes_AS_STRING(made)
        if first:
            at[0] = c'"'
            at += 1
        fdy_base64(array, self.next, numbers, at)
        if last:
            at[fdy_base64_size(numbers)] = c'"'
        self.next += numbers + last
        return made

    def __repr__(self):
        return f"<{self.size - 2} letters of base64>"
