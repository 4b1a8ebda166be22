"""Scripts that run with their system calls disturbed."""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.lib.children import python
from tests.lib.waiting import PATIENCE

SOURCE = Path(__file__).with_name("interpose.c")


@cache
def _library():
    """The preloaded library, built once; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="fd-postproc-tests-"))
    library = folder / "interpose.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def disturbed(how, script, *arguments):
    """What a script prints that runs disturbed as interpose.c says."""
    library = _library()
    if library is None:
        pytest.skip("needs a C compiler")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("something else is preloaded already")  # a sanitizer, which must come first
    environment = {**os.environ, "LD_PRELOAD": str(library), "DISTURB": how}
    command = python(f"import fd_postproc as fp\n{script}", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
