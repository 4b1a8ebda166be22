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

from children import python
from quiet import imported

PARENT = """
import gc, json, os, sys, warnings
warnings.simplefilter("ignore")
IMPORTS
gc.freeze()  # or every child copies all of it
for _request in sys.stdin:
    _code, _arguments, _environment, _folder, _files = json.loads(_request)
    if os.fork() == 0:
        for _number, _file in enumerate(_files):
            os.dup2(os.open(_file, os.O_RDWR), _number)
        os.environ.clear()
        os.environ.update(_environment)
        os.chdir(_folder)
        sys.argv[1:] = _arguments
        warnings.simplefilter("default")
        exec(compile(_code, "<script>", "exec"))
        break
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
            cwd="/",
            start_new_session=True,
        )

    def run(self, code, *arguments, env=None, timeout=60):
        """As `subprocess.run` with captured text; a script that takes too long ends the nursery."""
        with tempfile.NamedTemporaryFile("r+") as out, tempfile.NamedTemporaryFile("r+") as err:
            environment = dict(os.environ if env is None else env)
            files = ["/dev/null", out.name, err.name]
            request = json.dumps([code, [str(each) for each in arguments], environment, os.getcwd(), files])
            self._parent.stdin.write(request.encode() + b"\n")
            self._parent.stdin.flush()
            if not select.select([self._parent.stdout], [], [], timeout)[0]:
                self.close()
                raise subprocess.TimeoutExpired(code, timeout, out.read(), err.read())
            status = int(self._parent.stdout.readline())
            return subprocess.CompletedProcess(code, status, out.read(), err.read())

    def close(self):
        """End the parent, and a script that still runs."""
        if self._parent.poll() is None:
            os.killpg(self._parent.pid, 9)
            self._parent.wait()
        self._parent.stdin.close()
        self._parent.stdout.close()


@functools.cache
def _nursery(imports):
    nursery = Nursery(imports)
    atexit.register(nursery.close)
    return nursery


def nursery(imports="import numpy, sysv_ipc, fd_postproc.ops"):
    """The session's nursery with these imports."""
    made = _nursery(imports)
    if made._parent.poll() is None:
        return made
    _nursery.cache_clear()
    return nursery(imports)


def with_paddle(code, env=None):
    """What a script with Paddle prints as JSON in its last line."""
    imported("paddle")
    done = nursery("import paddle").run(code, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
