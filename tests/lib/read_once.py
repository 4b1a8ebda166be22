"""Arrays whose numbers change as soon as they are read: ``with changed_by_reading(array, other) as it``."""

import contextlib
import ctypes
import functools
import mmap
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest


@functools.cache
def _library():
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("needs a C compiler, and a processor that can be told to do one instruction")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer has handlers of its own")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "read_once.so")
        source = Path(__file__).with_suffix(".c")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        found = ctypes.CDLL(str(library))
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
