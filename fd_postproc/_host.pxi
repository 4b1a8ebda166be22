# Host memory of tensors that a C loop may read.

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


def host_input(tensor, str name, str dtype):
    """A tensor's memory as contiguous numbers of `dtype`; copied only if it is not that already.

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
        If it is no tensor, or holds another kind of numbers.
    ValueError
        If it is not in host memory, or a number in it does not fit `dtype`.
    """
    cdef HostInput out = HostInput.__new__(HostInput)
    cdef char kind = c"f" if dtype == "float32" else c"l" if dtype == "int64" else c"i"
    cdef Py_ssize_t k
    if PyObject_CheckBuffer(tensor):
        PyObject_GetBuffer(tensor, &out.view, PyBUF_STRIDES | PyBUF_FORMAT)
        out.holds_view = True
        if (out.view.format != NULL and out.view.format[0] == kind and out.view.format[1] == 0
                and PyBuffer_IsContiguous(&out.view, c"C")):
            out.address = <uintptr_t>out.view.buf
            out.shape = tuple([out.view.shape[k] for k in range(out.view.ndim)])
            out.size = out.view.len // out.view.itemsize
            return out
        PyBuffer_Release(&out.view)
        out.holds_view = False
    out.shape = tuple(tensor.shape) if hasattr(tensor, "shape") else ()
    out.address, out.size, out.keep = tensors.slow_input(tensor, name, dtype)
    return out
