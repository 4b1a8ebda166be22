"""Saves from a device leave memory where it was."""

import subprocess

import pytest

from tests.lib.children import python
from tests.lib.device_saves import PRELUDE
from tests.lib.waiting import PATIENCE

LEAK = """
import threading
steps = int(sys.argv[1])
def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
receiver = fp.Receiver("spec_topk")
def receive():
    while receiver.receive().stop_flag > 0:
        pass
batch = 8
tensors = dict(
    sampled_token_ids=stub_cuda.Exchange(np.zeros((batch, 6), np.int64)),
    logprob_token_ids=stub_cuda.Exchange(np.zeros((2 * batch, 3), np.int64)),
    logprob_scores=stub_cuda.Exchange(np.zeros((2 * batch, 3), np.float32)),
    logprob_ranks=stub_cuda.Exchange(np.zeros(2 * batch, np.int64)),
    token_num_per_batch=np.full(batch, 2, np.int32),
    cu_batch_token_offset=stub_cuda.Exchange(np.arange(0, 2 * batch, 2, dtype=np.int32)),
    not_need_stop=np.array([True]),
    seq_lens_decoder=np.zeros(batch, np.int32),
    prompt_lens=np.zeros(batch, np.int64),
    preempted_idx=np.zeros(batch, np.int32),
    message_flag=3, rank_id=0, save_each_rank=False,
)
def part(n):
    for _ in range(n):
        ops.speculate_save_output_topk(*tensors.values())
thread = threading.Thread(target=receive, daemon=True)
thread.start()
part(1000)
ops.flush()
before = resident_kib(), stub.stub_live_pinned(), stub.stub_live_events()
part(steps)
ops.flush()
after = resident_kib(), stub.stub_live_pinned(), stub.stub_live_events()
print(after[0] - before[0], after[1] - before[1], after[2] - before[2], ops.save_stats()["frames"])
"""


@pytest.mark.resident_memory
def test_2_000_saves_leave_memory_where_it_was(environment):
    steps = 2_000
    variables = {**environment, "FD_POSTPROC_DIALECT": "compact"}
    command = python(PRELUDE + LEAK, steps)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    kib, pinned, events, frames = map(int, done.stdout.split())
    assert frames == 1000 + steps
    assert (pinned, events) == (0, 0)
    assert kib < 256, f"grew by {kib} KiB in {steps} saves"
