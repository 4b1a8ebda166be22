"""Times one contender in this process: ``python -m fd_postproc.bench.worker QUESTION CASE CONTENDER ...``.

Started by `runner`; what else is on the command line is pyperf's.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys

from .cases import ROOMY, Comparison, Ready, TimeFunction, Unavailable

UNAVAILABLE = 3  # exit status; the reason is on stderr


def find(question: str, case: str) -> Comparison:
    """The comparison with this label; of a full run, since a quick one may leave contenders out."""
    module = importlib.import_module(f"{__package__}.{question}")
    for comparison in module.comparisons(False):
        if comparison.case == case:
            return comparison
    raise KeyError(f"question {question!r} has no case {case!r}")


def set_limits(outside: str, limits: tuple[int, int] = ROOMY) -> None:
    """Set kernel.msgmax and kernel.msgmnb, but only inside another IPC namespace than `outside`."""
    if os.readlink("/proc/self/ns/ipc") == outside:
        return
    for name, value in zip(("msgmax", "msgmnb"), limits, strict=True):
        with open(f"/proc/sys/kernel/{name}", "w") as file:
            file.write(str(value))


def loops_for(run: TimeFunction, min_time: float) -> int:
    """A loop count, a power of two, that takes `min_time` seconds or more."""
    loops = 1
    while run(loops) < min_time:
        loops *= 2
    return loops


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("case")
    parser.add_argument("contender")
    parser.add_argument("--outside", help="IPC namespace whose limits must stay as they are")
    parser.add_argument(
        "--min-time", type=float, required=True, help="seconds that one timing lasts at least"
    )
    args, for_pyperf = parser.parse_known_args(argv)
    comparison = find(args.question, args.case)
    contender = comparison.contenders[args.contender]
    if args.outside:
        set_limits(args.outside, comparison.limits.get(args.contender, ROOMY))
    try:
        ready = contender()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    try:
        name = f"{args.question}/{args.case}/{args.contender}"
        measure(name, ready, args.min_time, for_pyperf)
    finally:
        ready.close()
    return 0


def measure(name: str, ready: Ready, min_time: float, arguments: list[str]) -> None:
    """Hand a contender to pyperf."""
    import pyperf

    # Young collections go on, but what start-up left behind is not walked over again and again: a full
    # collection takes milliseconds and would fall on some contenders and not on others.
    gc.collect()
    gc.freeze()
    runner = pyperf.Runner()
    runner.parse_args([*arguments, f"--loops={loops_for(ready.run, min_time)}"])
    runner.bench_time_func(
        name, ready.run, metadata={"message_bytes": ready.bytes, "objects_made": ready.objects}
    )


if __name__ == "__main__":
    sys.exit(main())
