"""Processes of their own for scripts, without the time that imports take: forked from one that has made them.

That one never uses what it imports.  It is in the machine's IPC namespace, and so are its children.  A script
that cares how its process came to be is run by `children.python`.
"""

import atexit
import functools
import json
import os
import select
import subprocess
import tempfile

from tests.lib import children
from tests.lib.children import python
from tests.lib.quiet import imported
from tests.lib.waiting import PATIENCE

PARENT = """
import gc, json, os, sys, warnings
warnings.simplefilter("ignore")
IMPORTS
gc.freeze()  # or every child copies all of it
for _request in sys.stdin:
    _code, _arguments, _environment, _folder, _files = json.loads(_request)
    _files = [os.open(_file, os.O_RDWR | os.O_NOCTTY) for _file in _files]
    if os.fork() == 0:
        for _number, _file in enumerate(_files):
            os.dup2(_file, _number)
        os.environ.clear()
        os.environ.update(_environment)
        os.chdir(_folder)
        sys.argv[1:] = _arguments
        warnings.simplefilter("default")
        exec(compile(_code, "<script>", "exec"))
        break
    for _file in _files:
        os.close(_file)
    print("begun", flush=True)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


class Nursery:
    """Scripts run in children of one process.

    Parameters
    ----------
    imports : str
        Code that the scripts have behind them: imports, and nothing that a fork would disturb.
    """

    def __init__(self, imports):
        self._parent = subprocess.Popen(
            python(PARENT.replace("IMPORTS", imports)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    def run(self, code, *arguments, env=None, timeout=PATIENCE):
        """As `subprocess.run` with captured text; a script that takes too long ends the nursery."""
        with tempfile.NamedTemporaryFile("r+") as out, tempfile.NamedTemporaryFile("r+") as err:
            self.begin(code, *arguments, files=["/dev/null", out.name, err.name], env=env)
            status = self.end(timeout)
            if status is None:
                raise subprocess.TimeoutExpired(code, timeout, out.read(), err.read())
            return subprocess.CompletedProcess(code, status, out.read(), err.read())

    def begin(self, code, *arguments, files, env=None):
        """Start a script that has opened these for reading and writing: stdin, stdout, stderr; then `end`."""
        environment = dict(os.environ if env is None else env)
        request = json.dumps([code, [str(each) for each in arguments], environment, os.getcwd(), files])
        self._parent.stdin.write(request.encode() + b"\n")
        self._parent.stdin.flush()
        assert self._parent.stdout.readline() == b"begun\n"

    def end(self, timeout=PATIENCE):
        """Wait for the script that was begun; its exit status, or None if it takes too long."""
        if self._parent.poll() is None:
            if select.select([self._parent.stdout], [], [], timeout)[0]:
                return int(self._parent.stdout.readline())
            self.close()
        return None

    def close(self):
        """End the parent, and a script that still runs."""
        if self._parent.poll() is None:
            os.killpg(self._parent.pid, 9)
            self._parent.wait()
        self._parent.stdin.close()
        self._parent.stdout.close()


AT_ONCE = "sys.stdout.flush(); os._exit(0)"


@functools.cache
def _nursery(imports):
    nursery = Nursery(imports)
    children.kept.add(nursery._parent.pid)
    atexit.register(nursery.close)
    return nursery


def nursery(imports="import numpy, sysv_ipc, fd_postproc.ops"):
    """The session's nursery with these imports."""
    made = _nursery(imports)
    if made._parent.poll() is None:
        return made
    _nursery.cache_clear()
    return nursery(imports)


def with_paddle(code, env=None, to_the_end=False):
    """What a script with Paddle prints as JSON in its last line.

    Unless `to_the_end`, the interpreter is not taken down: with Paddle that takes longer than the script.
    """
    imported("paddle")
    done = nursery("import paddle").run(code if to_the_end else f"{code}\n{AT_ONCE}", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
