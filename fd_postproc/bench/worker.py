"""Times one contender in this process: ``python -m fd_postproc.bench.worker QUESTION CASE CONTENDER ...``.

Started by `runner`; what else is on the command line is pyperf's.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys

from .cases import Comparison, Ready, TimeFunction, Unavailable

UNAVAILABLE = 3  # exit status; the reason is on stderr
_ROOMY = 64 << 20


def find(question: str, case: str) -> Comparison:
    """The comparison with this label."""
    module = importlib.import_module(f"{__package__}.{question}")
    for quick in (True, False):
        for comparison in module.comparisons(quick):
            if comparison.case == case:
                return comparison
    raise KeyError(f"question {question!r} has no case {case!r}")


def raise_limits(outside: str) -> None:
    """Raise the kernel's message limits, but only inside another IPC namespace than `outside`."""
    if os.readlink("/proc/self/ns/ipc") == outside:
        return
    for name in ("msgmax", "msgmnb"):
        with open(f"/proc/sys/kernel/{name}", "w") as file:
            file.write(str(_ROOMY))


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
    if args.outside:
        raise_limits(args.outside)
    try:
        ready = find(args.question, args.case).contenders[args.contender]()
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
