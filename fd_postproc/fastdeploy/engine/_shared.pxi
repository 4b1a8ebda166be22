# Tensors that Paddle has pickled, read as numbers: a file of shared memory each, but no tensor.
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from fd_postproc.headers.lists cimport new_float, new_list, owned, set_item
from fd_postproc.headers.shared cimport (
    FDH_LEFT, FDH_NAME, FDH_READ, FDH_WAITS, fdh_file, fdh_let_go, fdh_read,
)

cdef extern from "Python.h":
    PyObject *_new_long "PyLong_FromLongLong"(long long value) except NULL


@cython.final
cdef class SharedTensor:
    """One tensor of a message: int64 or float32, of one or two dimensions.

    Until it is read its numbers lie in a file, which somebody has to let go of; if nobody has asked for them,
    that is done with this object.

    Attributes
    ----------
    shape : tuple of int
    """

    cdef readonly tuple shape
    cdef tuple arguments     # what Paddle's own function makes the tensor of
    cdef object metadata
    cdef TensorFiles files
    cdef fdh_file file
    cdef bint is_float

    def __init__(self):
        raise TypeError("made by TensorFiles only")

    def __dealloc__(self):
        fdh_let_go(&self.file)

    cdef bint is_row(self, bint is_float, Py_ssize_t cols) noexcept:
        """Whether it was read and is one row of `cols` numbers."""
        return (self.file.state == FDH_READ and self.is_float == is_float
                and self.file.size == cols * (4 if is_float else 8))

    def tensor(self):
        """Paddle's own tensor, made as FastDeploy's unpickling makes it."""
        if self.file.state != FDH_WAITS:
            raise ValueError("the numbers of this tensor have been taken out of their file")
        self.file.state = FDH_LEFT
        made = self.files.rebuild_file(*self.arguments)
        return self.files.rebuild_tensor(self.metadata[0], made, self.metadata[1])

    def tolist(self):
        """The numbers as Paddle's ``tolist`` gives them.

        Raises
        ------
        ValueError
            If they are not there any more.
        """
        with nogil:
            fdh_read(&self.file)
        if self.file.state != FDH_READ:
            raise ValueError(f"shared memory {self.file.name.decode()} of a tensor is gone, or too short")
        cdef Py_ssize_t cols = self.shape[len(self.shape) - 1], i
        if len(self.shape) == 1:
            return self._row(0, cols)
        return [self._row(i * cols, cols) for i in range(self.shape[0])]

    cdef list _row(self, Py_ssize_t first, Py_ssize_t n):
        cdef PyObject *row = new_list(n)
        cdef Py_ssize_t i
        cdef list made = owned(row)
        for i in range(n):
            if self.is_float:
                set_item(row, i, new_float((<float *>self.file.numbers)[first + i]))
            else:
                set_item(row, i, _new_long((<int64_t *>self.file.numbers)[first + i]))
        return made


@cython.final
cdef class TensorFiles:
    """Stands for Paddle's functions that make tensors of a pickle.

    Parameters
    ----------
    rebuild_file, rebuild_tensor : function
        Paddle's ``_rebuild_lodtensor_filename`` and ``_rebuild_tensor``.
    int64, float32 : int
        Paddle's numbers of these types.
    """

    cdef readonly object rebuild_file, rebuild_tensor
    cdef readonly object int64, float32

    def __init__(self, rebuild_file, rebuild_tensor, int64, float32):
        self.rebuild_file, self.rebuild_tensor = rebuild_file, rebuild_tensor
        self.int64, self.float32 = int64, float32

    def of_file(self, *arguments):
        """A `SharedTensor`, or what Paddle's function makes of arguments that are not known here."""
        made = self._known(arguments) if len(arguments) == 8 else None
        return self.rebuild_file(*arguments) if made is None else made

    cdef SharedTensor _known(self, tuple arguments):
        _, name, _, size, kind, dims, lod, by_descriptor = arguments
        if by_descriptor or lod or type(dims) is not list or not 1 <= len(dims) <= 2:
            return None
        if kind != self.int64 and kind != self.float32:
            return None
        cdef int64_t bytes_of_it = 4 if kind == self.float32 else 8
        for dim in dims:
            if type(dim) is not int or not 0 < dim <= 1 << 31 or bytes_of_it > 1 << 40:
                return None
            bytes_of_it *= <int64_t>dim
        cdef bytes text = name.encode() if type(name) is str else b""
        if not 0 < len(text) < FDH_NAME or b"\0" in text or size != bytes_of_it:
            return None
        cdef SharedTensor made = SharedTensor.__new__(SharedTensor)
        memcpy(made.file.name, <const char *>text, len(text) + 1)
        made.files, made.arguments, made.shape = self, arguments, tuple(dims)
        made.file.size, made.is_float = bytes_of_it, kind == self.float32
        return made

    def of_tensor(self, cls, content, metadata):
        """The same, inside of what Paddle pickles for a tensor."""
        if type(content) is not SharedTensor:
            return self.rebuild_tensor(cls, content, metadata)
        (<SharedTensor>content).metadata = cls, metadata
        if type(metadata) is not tuple:  # a parameter of a model
            return (<SharedTensor>content).tensor()
        return content
