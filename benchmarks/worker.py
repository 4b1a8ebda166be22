"""Times contenders: ``python -m benchmarks.worker QUESTION...``.

Started by `runner`.  This process loads what the questions need, and forks a process for each contender that
it is asked for, so that nothing is loaded twice and yet no contender leaves anything to the next.
Orders come as lines of JSON on stdin, answers go as lines of JSON to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

from .cases import ROOMY, Comparison, Ready, TimeFunction, Unavailable, WrongAnswer

READY = "ready"
UNAVAILABLE = 3  # exit status; the reason is on stderr


def find(question: str, case: str) -> Comparison:
    """The comparison with this label."""
    module = importlib.import_module(f"{__package__}.{question}")
    for comparison in module.comparisons():
        if comparison.case == case:
            return comparison
    raise KeyError(f"question {question!r} has no case {case!r}")


def set_limits(outside: str) -> None:
    """Raise kernel.msgmax and kernel.msgmnb, but only inside another IPC namespace than `outside`."""
    if os.readlink("/proc/self/ns/ipc") == outside:
        return
    for name, value in zip(("msgmax", "msgmnb"), ROOMY, strict=True):
        with open(f"/proc/sys/kernel/{name}", "w") as file:
            file.write(str(value))


def loops_for(run: TimeFunction, min_time: float) -> int:
    """A loop count that takes about `min_time` seconds, found in far less than that where calls are short."""
    loops = 1
    while (took := run(loops)) < min_time / 8:
        loops *= 2
    return max(1, round(loops * min_time / took))


def measure(name: str, ready: Ready, min_time: float, values: int) -> Any:
    """Time a contender with pyperf: `values` timings after one that is thrown away.

    Returns
    -------
    pyperf.Benchmark
    """
    import pyperf

    # Young collections go on, but what start-up left behind is not walked over again and again: a full
    # collection takes milliseconds and would fall on some contenders and not on others.
    gc.collect()
    gc.freeze()
    runner = pyperf.Runner()
    runner.parse_args(["--worker", f"--loops={loops_for(ready.run, min_time)}", "-w1", f"-n{values}"])
    return runner.bench_time_func(name, ready.run, metadata={"message_bytes": ready.bytes})


def answer(outside: str, order: dict[str, Any]) -> str:
    """Make and time one contender; pyperf's JSON."""
    question = order["question"]
    comparison = find(question, order["case"])
    contender = comparison.contenders[order["contender"]]
    if outside:
        set_limits(outside)
    gc.disable()  # what is made and checked here need not be walked over again and again
    ready = contender()
    gc.enable()
    try:
        name = f"{question}/{order['case']}/{order['contender']}"
        measured = measure(name, ready, order["min_time"], order["values"])
    finally:
        ready.close()
    text = io.StringIO()
    measured.dump(text)
    return text.getvalue()


def _child(outside: str, order: dict[str, Any], errors: int, answers: int) -> None:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDWR)
        for to, fd in enumerate((nothing, nothing, errors)):
            os.dup2(fd, to)
        try:
            with os.fdopen(answers, "w") as pipe:
                pipe.write(answer(outside, order))
            status = 0
        except Unavailable as reason:
            print(reason, file=sys.stderr)
            status = UNAVAILABLE
        except WrongAnswer as what:
            print(f"wrong answer, not timed: {what}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def in_child(outside: str, order: dict[str, Any]) -> dict[str, Any]:
    """Answer an order in a process of its own."""
    with tempfile.TemporaryFile() as errors:
        answers, answers_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(answers)
            _child(outside, order, errors.fileno(), answers_end)
        os.close(answers_end)
        with os.fdopen(answers) as pipe:
            benchmark = pipe.read()
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    return {"status": os.waitstatus_to_exitcode(status), "benchmark": benchmark, "errors": said}


def nothing_to_load() -> None:
    """What a question loads that names no `load`."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--outside", default="", help="IPC namespace whose limits must stay as they are")
    args = parser.parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what FastDeploy says while it is loaded is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner says when to stop; a child may be interrupted
    importlib.import_module("pyperf")
    for question in args.questions:
        module = importlib.import_module(f"{__package__}.{question}")
        with contextlib.suppress(Unavailable):  # every contender will say it again
            getattr(module, "load", nothing_to_load)()
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy these pages
    print(READY, file=answers, flush=True)
    for line in sys.stdin:
        json.dump(in_child(args.outside, json.loads(line)), answers)
        answers.write("\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
