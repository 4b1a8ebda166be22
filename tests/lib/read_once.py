"""Arrays whose numbers change as soon as they are read: ``with changed_by_reading(array, other) as it``."""

import contextlib
import ctypes
import functools
import mmap
import os
import platform

import numpy as np
import pytest

from tests.lib import c_library


@functools.cache
def _library():
    if platform.machine() != "x86_64":
        pytest.skip("needs a processor that can be told to do one instruction")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer has handlers of its own")
    found = c_library.library("read_once")
    found.watch.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4]
    found.unwatch.restype = ctypes.c_int64
    return found


@contextlib.contextmanager
def changed_by_reading(array, other):
    """A copy of an integer array; each of its numbers is `other` once it has been read."""
    library = _library()
    length = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    copy = np.frombuffer(mmap.mmap(-1, length), array.dtype, array.size).reshape(array.shape)
    copy[...] = array
    library.watch(copy.ctypes.data, length, array.itemsize, array.size, other)
    reads = 0
    try:
        yield copy
    finally:
        reads = library.unwatch()
    assert reads, "nobody has read it"
