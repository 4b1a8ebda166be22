"""H15 of docs/wire-protocol.md: threads with little stack receive and send the largest messages.

FastDeploy's op has a message of 530,448 bytes on the stack.  What overruns a stack ends the process, so that
each case has one of its own.
"""

import subprocess

from tests.lib.children import python
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

STACK = 128 << 10
"""Bytes: a quarter of what FastDeploy's op needs, and what musl gives a thread by default."""

IN_A_SMALL_THREAD = """
import sys, threading
import numpy as np
import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import payload_size, step_from_tensors, tensor_elements
from tests.lib.random_steps import random_step
from tests.lib.save_cases import arguments, random_inputs
from tests.lib.sending import LARGEST, same

def on_a_small_stack(call, *arguments):
    got = []
    threading.stack_size(int(sys.argv[1]))
    thread = threading.Thread(target=lambda: got.append(call(*arguments)))
    thread.start()
    threading.stack_size(0)
    thread.join()
    return got[0]

dialect = sys.argv[2]
step = random_step(**LARGEST)
"""

WAYS = {
    "Sender and Receiver": """
key = int(sys.argv[3])
with (
    fp.Receiver("spec_topk", key=key) as receiver,
    fp.Sender("spec_topk", key=key, dialect=dialect) as sender,
):
    on_a_small_stack(sender.send, step, 0)
    assert same(on_a_small_stack(receiver.receive, 0), step)
""",
    "get op": """
tensors = [np.zeros(n, t) for n, t in zip(tensor_elements("spec_topk"), ("int64", "float32", "int64"))]
with fp.Sender("spec_topk", dialect=dialect) as sender:
    sender.send(step, 0)
on_a_small_stack(ops.speculate_get_output_topk, *tensors, 20, 0, False)
assert same(step_from_tensors("spec_topk", *tensors), step)
""",
    "save op": """
inputs = random_inputs("speculate_save_output_topk", 512, 21, 1)
on_a_small_stack(ops.speculate_save_output_topk, *arguments("speculate_save_output_topk", inputs))
with fp.Receiver("spec_topk") as receiver:
    assert receiver.receive(0).batch == 512
""",
    "encode and decode": """
payload = on_a_small_stack(fp.encode, step, dialect)
assert dialect == "compact" or len(payload) >= payload_size("spec_topk") - 4
assert same(on_a_small_stack(lambda: fp.decode(payload, "spec_topk", mtype=1 + (dialect == "compact"))), step)
""",
}


@each(
    "way, dialect",
    [(way, "packed") for way in WAYS] + [("Sender and Receiver", "compact"), ("get op", "compact")],
)
def test_the_largest_message(way, dialect, raised_limits, queue_key, ops_queue):
    code = python(IN_A_SMALL_THREAD + WAYS[way], STACK, dialect, queue_key)
    done = subprocess.run(code, timeout=PATIENCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
