"""``headers/json.h`` compiled by the host's C compiler, with marks behind the room of each buffer."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.lib.kernel_emulation import compiler
from tests.lib.paths import ROOT

KINDS = ("string", "bytes", "double", "integer")


@functools.cache
def stays_inside():
    """A function of a kind, the bytes that are left in the buffer, a text's bytes and a float."""
    if compiler() is None:
        pytest.skip("needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "json_room.so")
        source = Path(__file__).with_name("json_room.c")
        command = [*compiler(), "-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{ROOT}", source, "-o", library]
        subprocess.run(command, check=True)
        found = ctypes.CDLL(str(library)).stays_inside
    found.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double]
    return lambda kind, left, n=0, value=0.0: bool(found(KINDS.index(kind), left, n, value))
