"""Instruction counts of the hot calls, under valgrind: a check that a busy machine does not disturb.

``python -m benchmarks.instructions count FILE`` counts and writes; ``check FILE`` counts and compares
with a file written before, by the same Python, compiler and machine type only.

One process runs under callgrind, which counts inside one C function only (`_floor.counted`) and writes a
profile each time that it is left.  Hash randomisation and the collector are off, and the holes in the heap
are filled first: how many pools an interpreter leaves half used depends on what it imported and where, and
allocating from them was 3 % of a call.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fd_postproc import ops
from fd_postproc._core import Attendance, FlightRing, Receiver, Sender, Step, decode, encode
from fd_postproc.fastdeploy.engine.results._results import Stages
from fd_postproc.queues import locate
from fd_postproc.support.child_python import python_command

from .built import _floor
from .cases import NARROW, PLAIN, SPEC, WIDE, Case, tensors_of
from .save import OPS, Environment, new_queue_id

CALLS, WARM_UP = 20, 20
TOLERANCE = 0.05
HOLES = 1 << 20  # bytes of each size of object
COUNTED = "flr_counted"  # in _floor.h


class Uncountable(Exception):
    """There is nothing to count with, or nothing to compare with; the text says why."""


def made_with() -> dict[str, str]:
    """What the counts depend on, beside this package's code."""
    return {
        "python": platform.python_version(),
        "compiler": platform.python_compiler(),
        "machine": platform.machine(),
        "numpy": importlib.metadata.version("numpy"),
    }


@contextmanager
def calls() -> Iterator[dict[str, tuple[Callable[[], Any], Callable[[], Any]]]]:
    """The hot calls by name: what is counted, and what is done before each, uncounted."""

    def nothing() -> None:
        pass

    narrow, wide, plain = NARROW, WIDE, PLAIN
    found: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for case in (narrow, wide, plain, SPEC):
        payload, channel = case.message(), case.channel
        found[f"decode {case}"] = partial(decode, payload, channel), nothing
    for case in (narrow, wide):
        step = case.step()
        found[f"encode {case}, compact"] = partial(encode, step, "compact"), nothing
        found[f"tolists {case}"] = step.tolists, nothing
        found[f"logprobs {case}, all requests"] = partial(_all_logprobs, step), nothing
    step, recording = wide.step(), Stages()
    recording.ring = FlightRing(bytearray(1 << 20))
    for name, stages in (("counters", Stages()), ("counters and flight recorder", recording)):
        found[f"{name} {wide}"] = partial(_counted_step, step, [None] * wide.batch, stages), nothing
    environment = Environment(
        INFERENCE_MSG_QUEUE_ID=new_queue_id(), INFERENCE_MSG_ID=None, FD_POSTPROC_DIALECT="compact"
    )
    pieces = Case(batch=512, accepted=2, columns=1)  # 14,400 bytes: two messages, and a new queue holds them
    try:
        yield found | _queued(narrow) | _queued(plain) | _queued(pieces)
    finally:
        for case in (narrow, plain):
            Receiver(case.channel, key=locate(case.channel)).remove()
        environment.restore()


def _counted_step(step: Step, results: list[None], stages: Stages) -> None:
    """What a step costs for counters and stage times, and for its entry if `stages` has a ring."""
    stages.end_build(step)
    stages.end_put(results, step)


def _all_logprobs(step: Step) -> list[Any]:
    return [step.logprobs(i) for i in range(step.batch)]


def _queued(case: Case) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Calls that talk to a queue, with messages that fit a new kernel's limits."""
    channel, step = case.channel, case.step()
    os.environ["FD_POSTPROC_DIALECT"] = dialect = "compact" if channel == "spec_topk" else "packed"
    receiver, other = (Receiver(channel, key=locate(channel)) for _ in range(2))
    counting = Attendance(other, ring=FlightRing(bytearray(1 << 20)))
    sender = Sender(channel, key=locate(channel), dialect=dialect)
    drain = _floor.Drain(receiver.msqid, 1 << 20)
    tensors = tensors_of(channel)
    save, wanted = OPS[channel]
    inputs: dict[str, Any] = dict(case.inputs())
    arguments = [inputs[one] if isinstance(one, str) else one for one in wanted]

    def send() -> None:
        sender.send(step)

    def clear() -> None:
        while drain.take() >= 0:
            pass

    def get() -> None:
        if channel == "plain":
            ops.get_output(tensors[0], 0, False)
        else:
            ids, scores, ranks = tensors
            ops.speculate_get_output_topk(ids, scores, ranks, 20, 0, False)

    def put() -> None:
        os.environ["FD_POSTPROC_DIALECT"] = dialect
        save(*arguments)

    def refill() -> None:
        clear()
        send()

    return {
        f"receive {case}": (receiver.receive, refill),
        f"receive {case}, for the plug-in": (counting.receive, refill),
        f"send {case}": (send, clear),
        f"get op {case}": (get, refill),
        f"save op {case}": (put, clear),
    }


def _fill_holes() -> list[bytes]:
    """Objects of every size that CPython's allocator has pools for: what comes next begins new ones."""
    return [bytes(size) for size in range(16, 480, 16) for _ in range(HOLES // size)]


def run() -> None:
    """Under callgrind: every call, its name on stdout."""
    gc.disable()
    held = _fill_holes()
    with calls() as found:
        for name, (call, before) in found.items():
            for _ in range(WARM_UP):
                before()
                call()
            for _ in range(CALLS):
                before()
                _floor.counted(call)
            print(name, flush=True)
    del held


def count() -> dict[str, int]:
    """Instructions of each call: the median of CALLS, system calls not among them.

    Raises
    ------
    Uncountable
        If valgrind is not installed.
    RuntimeError
        If it fails.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Uncountable("valgrind is not installed (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            valgrind,
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/out",
            "--collect-atstart=no",
            f"--toggle-collect={COUNTED}",
            f"--dump-after={COUNTED}",
            *python_command(f"{__package__}.instructions", "run"),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"callgrind failed:\n{done.stderr}")
        names = done.stdout.splitlines()
        counts = [_total(Path(folder, f"out.{number}")) for number in range(1, CALLS * len(names) + 1)]
    return {
        name: int(np.median(counts[at : at + CALLS]))
        for name, at in zip(names, range(0, len(counts), CALLS), strict=True)
    }


def _total(profile: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", profile.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind wrote no total into {profile.name}")
    return int(found[1])


def compare(known: dict[str, Any], counts: dict[str, int], tolerance: float) -> list[str]:
    """What differs by more than `tolerance`, and what is only on one side, in words."""
    lines = []
    for name in dict.fromkeys([*known["counts"], *counts]):
        then, now = known["counts"].get(name), counts.get(name)
        if then is None or now is None:
            lines.append(f"{name}: only {'counted now' if then is None else 'in the file'}")
        elif abs(now / then - 1) > tolerance:
            lines.append(f"{name}: {now:,} instructions, {100 * (now / then - 1):+.1f} % of {then:,}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """0: all as before, or not to be compared here (which is said); 1: something differs."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.instructions", description=__doc__)
    parser.add_argument("what", choices=("count", "check", "run"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    args = parser.parse_args(argv)
    if args.what == "run":
        run()
        return 0
    if args.file is None:
        parser.error("which FILE?")
    try:
        return _check(args.file, args.tolerance) if args.what == "check" else _count(args.file)
    except Uncountable as reason:
        print(f"instruction counts: not checked: {reason}")
        return 0


def _count(file: Path) -> int:
    file.write_text(json.dumps({"made_with": made_with(), "counts": count()}, indent=2) + "\n")
    print(f"instruction counts: {file} written")
    return 0


def _check(file: Path, tolerance: float) -> int:
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: python -m {__package__}.instructions count {file}")
    known = json.loads(file.read_text())
    here = made_with()
    other = [
        f"{name} {known['made_with'][name]}, here {here[name]}"
        for name in here
        if here[name] != known["made_with"].get(name)
    ]
    if other:
        raise Uncountable(f"{file} was made with {'; '.join(other)}")
    counts = count()
    differences = compare(known, counts, tolerance)
    for difference in differences:
        print(f"instruction counts: {difference}")
    if differences:
        print(f"instruction counts: if that is meant: python -m {__package__}.instructions count {file}")
        return 1
    print(f"instruction counts: {len(counts)} calls within {100 * tolerance:.0f} % of {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
