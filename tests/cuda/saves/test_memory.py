"""Saves from a device leave memory where it was."""

import subprocess

import pytest

from tests.lib.children import python
from tests.lib.device_saves import PRELUDE
from tests.lib.waiting import PATIENCE

LEAK = """
import collections, threading
from tests.lib.device_saves import placed
from tests.lib.save_cases import arguments, random_inputs
OP, steps = "speculate_save_output_topk", int(sys.argv[1])

def measured():
    with open("/proc/self/statm") as file:
        kib = int(file.read().split()[1]) * 4
    return kib, stub_cuda.counted("pinned"), stub_cuda.counted("events")

def part(n):
    for _ in range(n):
        ops.speculate_save_output_topk(*tensors)
    ops.flush()
    return measured()

inputs = random_inputs(OP, 8, 3, 1)
tensors = arguments(OP, placed(inputs, stub_cuda.Exchange, [n for n in inputs if n != "token_num_per_batch"]))
receiver = fp.Receiver("spec_topk")
threading.Thread(target=collections.deque, args=(receiver, 0), daemon=True).start()
before = part(steps // 2)
print(*(now - then for now, then in zip(part(steps), before)), ops.save_stats()["frames"])
"""


@pytest.mark.resident_memory
@pytest.mark.parametrize("steps", [600, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_saves_leave_memory_where_it_was(steps, environment):
    variables = {**environment, "FD_POSTPROC_DIALECT": "compact"}
    command = python(PRELUDE + LEAK, steps)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    kib, pinned, events, frames = map(int, done.stdout.split())
    assert (pinned, events, frames) == (0, 0, steps + steps // 2)
    assert kib < 256, f"grew by {kib} KiB in {steps} saves"
