# Sections: what a compact frame carries behind its body, and what they hold.
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset
from fd_postproc.headers.lists cimport int_row, new_list, owned, set_item
from fd_postproc.headers.sections cimport (
    FDZ_FINE, FDZ_MOST_SECTIONS, FDZ_ONE_MASK, FDZ_REQUIRED, FDZ_SECTION_HEADER, fdz_masks, fdz_next,
    fdz_number, fdz_open_masks, fdz_section,
)
from fd_postproc.headers.wire cimport (
    FDW_MASKS_NAME, FDW_MOST_EXTRA, FDW_WEIGHTS_NAME, fdw_check_sections, fdw_fault, fdw_message,
)

MASKS, WEIGHTS = FDW_MASKS_NAME, FDW_WEIGHTS_NAME  # names of sections
SECTION_REQUIRED, MOST_SECTIONS, MOST_EXTRA = FDZ_REQUIRED, FDZ_MOST_SECTIONS, FDW_MOST_EXTRA
_MOST_WEIGHTS = 64  # bytes of a weight version


cdef int _give_extra(Step step, bytes extra) except -1:
    """Let a step carry sections."""
    step.extra = extra
    step.raw.extra = PyBytes_AS_STRING(extra)
    step.raw.extra_size = len(extra)
    return 0


def _divided(content, Py_ssize_t begin=0):
    """The sections of bytes from a multiple of 8 on: a list of (name, marks, content as a memoryview).

    Raises
    ------
    ValueError
        If they do not add up.
    """
    cdef Py_buffer view
    cdef fdz_section s
    cdef int64_t at = 0
    cdef int status
    whole, found = memoryview(content)[begin:], []
    _get_bytes(whole, &view)
    try:
        while True:
            status = fdz_next(<const uint8_t *>view.buf, view.len, &at, &s)
            if status == 0:
                return found
            if status < 0:
                raise ValueError(f"the frame ends within a section, after {view.len - at} bytes of it")
            if len(found) == FDZ_MOST_SECTIONS:
                raise ValueError(f"the frame has more than {FDZ_MOST_SECTIONS} sections")
            name = (<const char *>&s.name)[:8].rstrip(b"\0")
            if any(one[0] == name for one in found):
                raise ValueError(f"the frame has two sections {name!r}")
            found.append((name, s.marks, whole[s.begin:s.begin + s.length]))
    finally:
        PyBuffer_Release(&view)


def _section(bytes name not None, int marks, inside):
    """A section's bytes, with the padding behind it."""
    length = len(inside)
    head = name.ljust(8, b"\0") + marks.to_bytes(8, "little") + length.to_bytes(8, "little")
    return b"".join((head, inside, bytes(-length % 8)))


cdef object _in_extra(Step step, bytes name):
    """Content of a step's section; None: it has none of this name."""
    if step.extra is not None:
        for found, _, inside in _divided(step.extra):
            if found == name:
                return inside
    return None


cdef int _check_extra(Step step) except -1:
    """Check what `_give_extra` was given, as the gate checks what has arrived."""
    cdef fdw_message m
    cdef fdw_fault fault
    memset(&m, 0, sizeof(m))
    m.data, m.size, m.batch = <const uint8_t *>step.raw.extra, step.raw.extra_size, step.raw.batch
    if fdw_check_sections(&m, &fault) < 0:
        raise _malformed(step.raw.channel, &fault)
    if m.size > FDW_MOST_EXTRA:
        raise ValueError(
            f"the sections of a step have {m.size} bytes, at most {FDW_MOST_EXTRA} fit into a frame: its "
            "sampling masks are too long")
    return 0


cdef int _refuse_required(Step step) except -1:
    """FastDeploy's own messages have no place for sections."""
    for name, marks, _ in _divided(step.extra):
        if marks & FDZ_REQUIRED:
            raise ValueError(
                f"the step carries {name.decode('ascii', 'replace')!r}, for which only the compact dialect "
                "has a place")
    return 0


# ---- what they hold ----------------------------------------------------------------------------------------


def _masks_bytes(masks, Py_ssize_t slots):
    """Sampling masks as the content of a section.

    Parameters
    ----------
    masks : dict of int to (array_like of int, or list of array_like of int)
        By slot, one mask, or a list of one for each accepted token.
    slots : int

    Raises
    ------
    ValueError, TypeError
        If a number in them is none, or does not fit 32 bits.
    """
    if not isinstance(masks, dict):
        raise TypeError(f"masks must be a dict of ids by request, not {checks.kind_of(masks)}")
    counts, arrays_ = np.zeros(slots, np.int32), []
    by_slot = {checks.whole_number(slot, "the request of a mask", 0, slots - 1): one
               for slot, one in masks.items()}
    for slot, one in sorted(by_slot.items()):
        nested = isinstance(one, (list, tuple)) and len(one) and not isinstance(one[0], (int, np.integer))
        counts[slot] = len(one) if nested else FDZ_ONE_MASK
        arrays_ += [np.asarray(tensors.host_array(mask, "a mask") if hasattr(mask, "data_ptr") else mask)
                    for mask in (one if nested else [one])]
    for array in arrays_:
        if array.size and array.dtype.kind not in "iu" or array.ndim != 1:
            raise ValueError(f"a sampling mask of dtype {array.dtype} and {array.ndim} dimensions")
    begins = np.zeros(len(arrays_) + 1, np.int64)
    np.cumsum([len(array) for array in arrays_], out=begins[1:])
    ids = np.concatenate([*arrays_, np.empty(0, np.int32)]) if arrays_ else np.empty(0, np.int32)
    narrow = ids.astype(np.int32)
    if not np.array_equal(narrow, ids) or begins[-1] > 0x7FFFFFFF:
        raise ValueError("a sampling mask: a number has no room in 32 bits")
    head = np.array([slots, len(arrays_)], np.int32)
    return b"".join(part.tobytes() for part in (head, counts, begins.astype(np.int32), narrow))


def _masks_of(content, Py_ssize_t slots):
    """Sampling masks by slot, as lists: what `_masks_bytes` was given.

    Raises
    ------
    ValueError
        If they do not add up.
    """
    cdef Py_buffer view
    cdef fdz_masks m
    cdef int64_t where, value, bound
    cdef int32_t count, i, k = 0, j
    cdef list listed
    cdef dict found = {}
    _get_bytes(content, &view)
    try:
        if fdz_open_masks(&m, <const uint8_t *>view.buf, view.len, slots, &where, &value, &bound) != FDZ_FINE:
            raise ValueError("the sampling masks of the frame do not add up")
        for i in range(m.slots):
            count = fdz_number(m.counts, i)
            if count == FDZ_ONE_MASK:
                found[i] = _mask(&m, k)
                k += 1
            elif count > 0:
                listed = []
                for j in range(count):
                    listed.append(_mask(&m, k))
                    k += 1
                found[i] = listed
        return found
    finally:
        PyBuffer_Release(&view)


cdef object _mask(const fdz_masks *m, int32_t k):
    cdef int32_t begin = fdz_number(m.begins, k), j
    cdef int32_t n = fdz_number(m.begins, k + 1) - begin
    cdef list made = [None] * n
    for j in range(n):
        made[j] = fdz_number(m.ids, begin + j)
    return made


def _weights_bytes(weights):
    """A weight version as the content of a section."""
    if not isinstance(weights, str):
        raise TypeError(f"weight_version must be a string, not {checks.kind_of(weights)}")
    try:
        content = weights.encode()
    except UnicodeEncodeError:
        raise ValueError(f"weight_version {checks.shown(weights)} cannot be written as UTF-8") from None
    if not 0 < len(content) <= _MOST_WEIGHTS:
        raise ValueError(
            f"weight_version is {len(content)} bytes of UTF-8; it may have 1 to {_MOST_WEIGHTS}")
    return content


def _extra_of(masks, weights, Py_ssize_t slots):
    """The sections of a step; None: it needs none."""
    parts = []
    if masks is not None:
        parts.append(_section(MASKS, FDZ_REQUIRED, _masks_bytes(masks, slots)))
    if weights is not None:
        parts.append(_section(WEIGHTS, 0, _weights_bytes(weights)))
    return b"".join(parts) or None
