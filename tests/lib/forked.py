"""Scripts that each need a fresh process in which Paddle is imported: that takes a second, once for all."""

import json
import os
import subprocess

from children import python
from quiet import imported

PARENT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import gc, paddle
gc.freeze()  # or every child copies all of it
for name, (code, variables) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        sys.exit(f"{name} ended with status {status}")
"""


def with_paddle(scripts, unset=()):
    """What each script prints as JSON in its last line, by name.

    Parameters
    ----------
    scripts : dict of str to (str, dict)
        Code, and environment variables of its own.
    unset : collection of str, optional
        Environment variables of this process that none of them has.
    """
    imported("paddle")
    done = subprocess.run(
        python(PARENT, json.dumps(scripts)),
        env={name: value for name, value in os.environ.items() if name not in unset},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in ("{", "[")]
    return dict(zip(scripts, told, strict=True))
