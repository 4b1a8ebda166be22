"""Tensors that change while they are read: ``with changing(array, one, other): ...``."""

import contextlib
import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest


@functools.cache
def _change():
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        pytest.skip("needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "changing.so")
        command = [*compiler, "-O1", "-shared", "-fPIC", Path(__file__).with_suffix(".c"), "-o", library]
        subprocess.run(command, check=True)
        found = ctypes.CDLL(str(library)).change  # called without the GIL
    found.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    found.restype = None
    return found


@contextlib.contextmanager
def changing(array, one, other):
    """A thread that writes the one and the other into every element of an integer array."""
    stop = ctypes.c_int32(0)
    arguments = (array.ctypes.data, array.size, array.itemsize, one, other, ctypes.byref(stop))
    thread = threading.Thread(target=_change(), args=arguments)
    thread.start()
    try:
        yield
    finally:
        stop.value = 1
        thread.join()
