# Host memory of tensors that a C loop may read, and the step that a get op has left there.
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from fd_postproc.headers.counter cimport fdc_read
from fd_postproc.headers.dlpack cimport (
    FDL_BOOL, FDL_CAPSULE, FDL_CPU, FDL_FLOAT, FDL_INT, FDL_PINNED, fdl_elements, fdl_exchange,
    fdl_is_contiguous, fdl_tensor,
)


@cython.final
@cython.no_gc
cdef class HostInput:
    """The numbers of a tensor, contiguous and of the dtype asked for.

    Attributes
    ----------
    address, size : int
        Where they are, and how many.
    shape : tuple of int
    """

    cdef Py_buffer view      # held open while this object lives, if the tensor exports a buffer
    cdef bint holds_view
    cdef object keep         # owns the memory, if it does not
    cdef readonly uintptr_t address
    cdef readonly tuple shape
    cdef readonly Py_ssize_t size

    def __dealloc__(self):
        if self.holds_view:
            PyBuffer_Release(&self.view)


cdef bint _look(tensor, fdl_tensor *out) except -1:
    """Ask a tensor where its memory is, if its framework offers DLPack's C exchange API.

    False also if that raises, or reports no memory or numbers of the other signedness: the slow path then
    raises the error.
    """
    capsule = getattr(type(tensor), "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, FDL_CAPSULE):
        return False
    cdef fdl_exchange *exchange = <fdl_exchange *>PyCapsule_GetPointer(capsule, FDL_CAPSULE)
    if exchange.major != 1:
        return False
    try:
        exchange.look(<PyObject *>tensor, out)
    except Exception:
        return False
    return out.data != NULL and not tensors.is_negated(tensor)


cdef bint _get_numbers(tensor, Py_buffer *view) except -1:
    """A tensor's buffer with its format; False if it has none, or of a dtype that buffers lack."""
    if not PyObject_CheckBuffer(tensor):
        return False
    try:
        PyObject_GetBuffer(tensor, view, PyBUF_STRIDES | PyBUF_FORMAT)
    except (BufferError, ValueError):
        return False
    return True


def host_flag(tensor, str name):
    """The first element of a bool tensor in host memory, or a plain bool.

    Raises
    ------
    TypeError
        If it is not a bool tensor.
    ValueError
        If it is empty, or not in host memory.
    """
    cdef fdl_tensor t
    cdef Py_buffer view
    if isinstance(tensor, bool):
        return tensor
    if _get_numbers(tensor, &view):
        try:
            if view.format != NULL and view.format[0] == c"?" and view.len > 0:
                return (<uint8_t *>view.buf)[0] != 0
        finally:
            PyBuffer_Release(&view)
    elif (_look(tensor, &t) and t.device_type in (FDL_CPU, FDL_PINNED) and t.code == FDL_BOOL and t.bits == 8
            and t.lanes == 1 and (t.ndim == 0 or t.shape[0] > 0)):
        return (<uint8_t *>t.data)[t.byte_offset] != 0
    return tensors.slow_flag(tensor, name)


def host_input(tensor, str name, str dtype):
    """A tensor's memory as contiguous numbers of `dtype`; copied only if it does not have that form already.

    Parameters
    ----------
    tensor : paddle.Tensor, torch.Tensor or numpy.ndarray
        Integers of any width are converted to integers, floats of any width to floats.
    name : str
        What the tensor is called in error texts.
    dtype : str
        ``"int64"``, ``"int32"`` or ``"float32"``.

    Returns
    -------
    HostInput

    Raises
    ------
    TypeError
        If it is not a tensor, or holds another kind of numbers.
    ValueError
        If it is not in host memory, or a number in it does not fit `dtype`.
    """
    cdef HostInput out = HostInput.__new__(HostInput)
    cdef char kind = c"f" if dtype == "float32" else c"l" if dtype == "int64" else c"i"
    cdef fdl_tensor t
    cdef Py_ssize_t k
    if _get_numbers(tensor, &out.view):
        out.holds_view = True
        if (out.view.format != NULL and out.view.format[0] == kind and out.view.format[1] == 0
                and PyBuffer_IsContiguous(&out.view, c"C")):
            out.address = <uintptr_t>out.view.buf
            out.shape = tuple([out.view.shape[k] for k in range(out.view.ndim)])
            out.size = out.view.len // out.view.itemsize
            return out
        PyBuffer_Release(&out.view)
        out.holds_view = False
    elif _look(tensor, &t) and t.device_type in (FDL_CPU, FDL_PINNED) and t.lanes == 1:
        if (t.code == (FDL_FLOAT if kind == c"f" else FDL_INT) and t.bits == (64 if kind == c"l" else 32)
                and fdl_is_contiguous(&t)):
            out.keep = tensor
            out.address = <uintptr_t>t.data + t.byte_offset
            out.shape = tuple([t.shape[k] for k in range(t.ndim)])
            out.size = fdl_elements(&t)
            if out.size < 0:
                raise ValueError(f"{name} has shape {list(out.shape)}: so many elements are in no memory")
            return out
    out.address, out.shape, out.keep = tensors.slow_input(tensor, name, dtype)
    out.size = math.prod(out.shape)
    return out


cdef bytes _read_once(tensor, str name):
    """A host tensor's integers, each read once: it may change during the call."""
    cdef HostInput numbers = host_input(tensor, name, "int64")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 8 * numbers.size)
    cdef int64_t *to = <int64_t *>PyBytes_AS_STRING(out)
    cdef Py_ssize_t k
    for k in range(numbers.size):
        to[k] = fdc_read(<const int64_t *>numbers.address + k)
    return out


def step_from_tensors(channel, tokens, scores=None, ranks=None, *, layout=GPU):
    """The step that a get op left in its tensors.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    tokens : tensor, int64
        As `fd_postproc.ops` and FastDeploy's own ops fill it.  It may be shorter than they require, as long
        as everything that its header claims is there.
    scores : tensor, float32, optional
        On ``topk`` and ``spec_topk``.
    ranks : tensor, int64, optional
        Likewise.
    layout : Layout, optional

    Returns
    -------
    Step
        A header without a number of columns, as the legacy dialect leaves it, means all ``top_k + 1``: what
        FastDeploy's token processor asks for.

    Raises
    ------
    MalformedMessage
        If anything is inconsistent, or a number does not fit 32 bits.
    TypeError, ValueError
        If a tensor is of another kind, or not in host memory.
    """
    _channel_number(channel)
    _c_layout(layout)
    cdef HostInput floats
    given = [_read_once(tokens, "tokens")]
    if has_logprobs(channel):
        floats = host_input(scores, "scores", "float32")
        given += (<const char *>floats.address)[:4 * floats.size], _read_once(ranks, "ranks")
    numbers = arrays.GetTensors(channel, layout, *given)
    step = decode(numbers.message(), channel, layout=layout)
    numbers.check(step)
    return step
