# The arrays of a Step as memoryviews.
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_F_CONTIGUOUS, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE


@cython.final
@cython.no_gc
cdef class _Part:
    """One array of a Step, exported through the buffer protocol; it keeps the Step alive."""

    cdef Step step           # owns the memory that data points into
    cdef void *data
    cdef char *format
    cdef int ndim
    cdef Py_ssize_t shape[2]
    cdef Py_ssize_t strides[2]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("a Step's arrays are read-only")
        if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS and self.ndim == 2
                and self.shape[0] > 1 and self.shape[1] > 1):
            raise BufferError("a Step's arrays are in C order")
        cdef Py_ssize_t cells = self.shape[0] * (self.shape[1] if self.ndim == 2 else 1)
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = 4 * cells
        buffer.itemsize = 4
        buffer.readonly = 1
        buffer.ndim = self.ndim
        buffer.format = self.format if flags & PyBUF_FORMAT else NULL
        buffer.shape = self.shape if flags & PyBUF_ND else NULL
        buffer.strides = self.strides if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        pass


cdef object _part(Step step, void *data, char *format, Py_ssize_t n, Py_ssize_t cols=-1):
    cdef _Part part = _Part.__new__(_Part)
    part.step = step
    part.data = data
    part.format = format
    part.ndim = 1 if cols < 0 else 2
    part.shape[0] = n
    part.shape[1] = cols
    part.strides[0] = 4 if cols < 0 else 4 * cols
    part.strides[1] = 4
    return memoryview(part)
