"""C code compiled by the host's C compiler, for ctypes; to optimise it takes longer than the tests gain."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tests.lib.paths import ROOT

STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
SHARED = ["-shared", "-fPIC", "-pthread", f"-I{ROOT}"]


def compiler():
    """The C compiler's command, or None if there is none."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            return words
    return None


def library(name):
    """A C file of this folder as a library in this process; ``CFLAGS`` are the last flags."""
    import pytest  # here: child processes use this module, and the import would be most of their time

    if compiler() is None:
        pytest.skip("needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, f"{name}.so")
        flags = [*STRICT, *SHARED, *shlex.split(os.environ.get("CFLAGS", ""))]
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run([*compiler(), *flags, source, "-o", built], check=True)
        return ctypes.CDLL(str(built))
