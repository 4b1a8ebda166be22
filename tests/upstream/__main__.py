"""``python -m tests.upstream``: change FastDeploy in one small way after the other; what does the plug-in do?

It takes the double, or with ``FD_POSTPROC_FASTDEPLOY`` a source tree that is first on the import path.  Each
change is judged in a process of its own, forked from one that has imported everything else.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
import warnings

from tests.upstream import page
from tests.upstream.changes import every_change
from tests.upstream.judge import BROKEN, GOOD, NO_PLACE, RAISES, RELOADED, SERVED, judge

BEFORE = (
    *("paddle", "numpy", "msgpack", "prometheus_client", "zmq", "fd_postproc.ops"),
    *(
        f"fd_postproc.fastdeploy.{name}"
        for name in (
            *("report", "trial.compatibility", "engine.processor_class", "engine.activation"),
            *("engine.entry", "engine.fast_paths"),
        )
    ),
)


def main():
    options = _options()
    changes = [one for one in every_change() if any(text in one.name for text in options.only)]
    changes = changes[options.first :: options.step]
    warnings.simplefilter("ignore")
    for name in BEFORE if is_double() else (*BEFORE, *RELOADED, *SERVED):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    began = time.monotonic()
    told = judged(changes, options.processes)
    if options.json:
        print("\ntold: " + json.dumps(told))
    else:
        for one in told:
            print(
                f"{one['outcome']:22} {one['seconds']:4.1f} s  {one['name']}  {one['why'][: options.width]}"
            )
        print(f"{len(told)} changes in {time.monotonic() - began:.0f} s")
    if options.write:
        page.write(told)
    bad = [one for one in told if one["outcome"] not in (*GOOD, NO_PLACE)]
    return 1 if bad else 0


def _options():
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="changes whose name holds one of these texts")
    parser.add_argument("--first", type=int, default=0, help="begin with this one")
    parser.add_argument("--step", type=int, default=1, help="take every one of so many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--width", type=int, default=160, help="of the reason")
    parser.add_argument("--write", action="store_true", help=f"write {page.PAGE.name}")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def is_double():
    """Whether the FastDeploy on the import path is the double."""
    return "fastdeploy_double" in importlib.util.find_spec("fastdeploy").origin


def judged(changes, processes):
    """What becomes of each change, in their order."""
    running, told = {}, {}
    todo = list(enumerate(changes))
    while todo or running:
        while todo and len(running) < processes:
            number, change = todo.pop(0)
            running[_begin(change)] = number, change, time.monotonic()
        pid, status = os.wait()
        for (child, reading), (number, change, began) in list(running.items()):
            if child == pid:
                del running[child, reading]
                with os.fdopen(reading) as answer:
                    text = answer.read()
                outcome, why = json.loads(text) if text else (RAISES, f"the process ended with {status}")
                told[number] = {
                    "name": change.name,
                    "kind": change.kind,
                    "what": change.what,
                    "outcome": outcome,
                    "why": why,
                    "seconds": time.monotonic() - began,
                }
    return [told[number] for number in sorted(told)]


def _begin(change):
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        try:
            answer = judge(change)
        except BaseException as error:
            answer = BROKEN, f"{type(error).__name__}: {error}"
        with os.fdopen(writing, "w") as out:
            json.dump(answer, out)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
