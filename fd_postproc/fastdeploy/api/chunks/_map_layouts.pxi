# Maps out of msgpack that have the keys of earlier ones in the same order, as a step's results have.
#
# A map like that is a copy of one with all of its keys, and None for each value: no key is looked up, the map
# does not grow key by key, and a None of the message is there already.
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy, PyDict_New

cdef enum:
    LAYOUTS = 64               # that are remembered
    FEWEST_KEYS = 6            # of a map that has a layout: smaller ones never grow
    MOST_KEYS = 64
    LONGEST_KEY = 48           # on an average
    MISSES = 16                # in a row, after which another layout takes the place


@cython.final
@cython.internal
cdef class Layout:
    """The keys of a map, in order."""

    cdef list keys
    cdef bytes packed                  # the keys as msgpack has them, one after the other
    cdef uint16_t ends[MOST_KEYS]      # of the keys in `packed`
    cdef dict empty                    # every key, with None
    cdef int misses

    @staticmethod
    cdef Layout of(list keys, list packed):
        """A layout of keys and their bytes; None if a key comes twice, or is long."""
        cdef Layout layout = Layout.__new__(Layout)
        cdef size_t end = 0, i
        layout.keys, layout.packed = keys, b"".join(packed)
        layout.empty = dict.fromkeys(keys)
        if len(layout.empty) != len(keys) or len(layout.packed) >= MOST_KEYS * LONGEST_KEY:
            return None
        for i in range(len(keys)):
            end += len(<bytes>packed[i])
            layout.ends[i] = <uint16_t>end
        return layout


cdef list _layouts = [None] * LAYOUTS


cdef inline size_t _place_of(fdu_bytes *source, size_t size) noexcept:
    """Where the layout of a map would be, from its number of keys and the first one's bytes."""
    if source.end - source.at < 3:
        return 0
    return (size + 7 * source.at[0] + 31 * source.at[1] + 57 * source.at[2]) % LAYOUTS


cdef dict _unpacked_map(fdu_bytes *source, size_t size, int depth, bint lazy):
    """A map of `size` keys, which begin here."""
    cdef size_t i = 0, place = 0
    cdef bint learns = FEWEST_KEYS <= size <= MOST_KEYS
    cdef dict values = None
    cdef Layout layout
    if learns:
        place = _place_of(source, size)
        layout = _layouts[place]
        if layout is not None:
            learns = False
            if PyList_GET_SIZE(layout.keys) == <Py_ssize_t>size:
                values = PyDict_Copy(layout.empty)
                i = _fill(layout, values, source, depth, lazy)
                if i == size:
                    layout.misses = 0
                    return values
            layout.misses += 1
            if layout.misses > MISSES:
                _layouts[place] = None
            values = PyDict_New() if values is None else {key: values[key] for key in layout.keys[:i]}
    return _rest_of_map(source, size, i, PyDict_New() if values is None else values, depth, lazy,
                        <int>place if learns else -1)


cdef size_t _fill(Layout layout, dict values, fdu_bytes *source, int depth, bint lazy) except? 0:
    """Set the values up to the first key that is another one; how many there are."""
    cdef const char *packed = layout.packed
    cdef size_t count = PyList_GET_SIZE(layout.keys), begin = 0, length, i
    cdef PyObject *key
    for i in range(count):
        length = layout.ends[i] - begin
        if <size_t>(source.end - source.at) <= length or memcmp(source.at, packed + begin, length):
            return i
        source.at += length
        begin += length
        if source.at[0] == 0xC0:
            source.at += 1
            continue
        key = PyList_GET_ITEM(layout.keys, i)
        PyDict_SetItem(values, <object>key, _value_of(<object>key, source, depth, lazy))
    return count


cdef dict _rest_of_map(
    fdu_bytes *source, size_t size, size_t first, dict values, int depth, bint lazy, int place
):
    """Set the values from a key on; its layout is remembered at a place that is not negative."""
    cdef const char *text
    cdef const unsigned char *begin
    cdef size_t length, i
    cdef list keys = None, packed = None
    if place >= 0:
        keys, packed = [], []
    for i in range(first, size):
        begin = source.at
        if not fdu_text(source, &text, &length):
            raise Unknown("a message of results with a key that is no text")
        key = _interned(PyUnicode_DecodeUTF8(text, length, NULL))
        if keys is not None:
            keys.append(key)
            packed.append(PyBytes_FromStringAndSize(<const char *>begin, source.at - begin))
        PyDict_SetItem(values, key, _value_of(key, source, depth, lazy))
    if keys is not None:
        _layouts[place] = Layout.of(keys, packed)
    return values


cdef inline object _value_of(key, fdu_bytes *source, int depth, bint lazy):
    """The value of a key; log-probabilities may stay packed."""
    if lazy and (key is _top or key is _draft):
        value = _packed(source)
        if value is not None:
            return value
    return _unpacked(source, depth + 1, lazy)


from sys import intern as _interned
