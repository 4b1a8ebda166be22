"""``python -m tests.upstream ``: the double with one small change after the other, as the gate sees it.

Each change is judged in a process of its own, forked from one that has imported everything else.
"""

import contextlib
import importlib
import json
import os
import warnings

from tests.upstream.changes import CHANGES
from tests.upstream.judge import BROKEN, judge

BEFORE = (
    *("paddle", "numpy", "msgpack", "prometheus_client", "zmq", "fd_postproc.ops"),
    *("fd_postproc.fastdeploy.engine.processor_class", "fd_postproc.fastdeploy.api.chunks.building_blocks"),
)


def judged(change):
    """What is left to FastDeploy with a change, by seam."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            try:
                answer = judge(change)
            except BaseException as error:
                answer = {BROKEN: f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "w") as out:
                json.dump(answer, out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = json.load(answer)
    os.waitpid(pid, 0)
    return told


def main():
    """Print what is left with each change, as JSON."""
    warnings.simplefilter("ignore")
    for name in BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print(json.dumps({one.name: judged(one) for one in CHANGES}))


if __name__ == "__main__":
    main()
