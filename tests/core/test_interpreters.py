"""What the core does not support, it refuses: a second interpreter in a process, and no GIL."""

import subprocess
import sys
import sysconfig

import pytest

from tests.lib.children import python
from tests.lib.waiting import PATIENCE

IMPORT = """
try:
    import fd_postproc
except ImportError as error:
    print(type(error).__name__, error, flush=True)
else:
    print(fd_postproc.decode(bytes(8), "plain"), flush=True)
"""

SUBINTERPRETERS = f"""
code = "import sys; sys.path[:] = {{!r}}\\n".format(sys.path) + {IMPORT!r}
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def run_in_another():
    failure = interpreters.run_string(interpreters.create(), code)
    assert not failure, failure
"""


def run(script, **keywords):
    done = subprocess.run(python(script), capture_output=True, text=True, timeout=PATIENCE, **keywords)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_interpreter_is_refused():
    """By Cython's own check, or from Python 3.12 on by Python's; the first one goes on."""
    pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    first, second, again = run(SUBINTERPRETERS + IMPORT + "run_in_another()" + IMPORT).splitlines()
    assert first == again == "<Step plain legacy: 0 requests, 0 tokens>"
    assert second.startswith("ImportError ")
    assert "does not support loading in subinterpreters" in second or "one interpreter per process" in second


def test_without_the_gil_it_is_refused():
    """Where the GIL can be turned off this is the real thing, elsewhere Python is made to say so."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        out = run(IMPORT, env={"PYTHON_GIL": "0"})
    else:
        out = run("sys._is_gil_enabled = lambda: False\n" + IMPORT)
    assert out.startswith("ImportError fd_postproc needs the GIL, which PYTHON_GIL=0")


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has the GIL")
def test_python_turns_the_gil_on_for_it():
    assert "True" in run("import fd_postproc; print(sys._is_gil_enabled())")
