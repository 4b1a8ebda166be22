"""``frames.h`` with little room, compiled by the host's C compiler, on a clock that the caller sets."""

import ctypes
import functools
from dataclasses import astuple

from fd_postproc._core import CHANNELS
from tests.lib import c_library

ROOM = {"LEAST_ROOM": 4096, "MOST_KNOWN": 3, "MOST_REMEMBERED": 4, "MOST_EXTRA": 0}  # as in reassembly.c
REFUSED, MORE, WHOLE = -1, 0, 1  # enum fdf_result
ADDRESS = ctypes.c_void_p


@functools.cache
def _library():
    found = c_library.library("reassembly")
    found.begin.restype = ADDRESS
    found.begin.argtypes = [ctypes.c_int] * 5 + [ctypes.c_uint64, ctypes.c_uint32]
    found.end.argtypes = [ADDRESS]
    number = ctypes.POINTER(ctypes.c_uint64)
    found.accept_one.argtypes = [ADDRESS, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, number, number]
    for name in ("fragments", "incomplete", "foreign"):
        getattr(found, name).restype = ctypes.c_int64
        getattr(found, name).argtypes = [ADDRESS]
    return found


class Assembly:
    """The C code's `Reassembler`."""

    def __init__(self, channel, layout, seed=1, service=0):
        self._library = _library()
        self._at = self._library.begin(*astuple(layout), CHANNELS.index(channel), seed, service)

    def add(self, message, now):
        """What came of a message (an enum fdf_result); sender and number of a whole frame."""
        sender, seq = ctypes.c_uint64(), ctypes.c_uint64()
        status = self._library.accept_one(
            self._at, message, len(message), int(now * 1e9), ctypes.byref(sender), ctypes.byref(seq)
        )
        return status, (sender.value, seq.value) if status == WHOLE else None

    @property
    def fragments(self):
        return self._library.fragments(self._at)

    @property
    def foreign(self):
        return self._library.foreign(self._at)

    @property
    def incomplete(self):
        return self._library.incomplete(self._at)

    def close(self):
        self._library.end(self._at)
