"""``headers/json.h`` compiled by the host's C compiler, with marks behind the room of each buffer."""

import ctypes
import functools

from tests.lib import c_library

KINDS = ("string", "bytes", "double", "integer")


@functools.cache
def stays_inside():
    """A function of a kind, the bytes that are left in the buffer, a text's bytes and a float."""
    found = c_library.library("json_room").stays_inside
    found.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double]
    return lambda kind, left, n=0, value=0.0: bool(found(KINDS.index(kind), left, n, value))
