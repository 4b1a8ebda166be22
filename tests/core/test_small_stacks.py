"""H15 of docs/wire-protocol.md: threads with little stack receive and send the largest messages.

FastDeploy's op has a message of 530,448 bytes on the stack.  What overruns a stack ends the process.
"""

import subprocess

from tests.lib.children import python
from tests.lib.waiting import PATIENCE

STACK = 128 << 10
"""Bytes: a quarter of what FastDeploy's op needs, and what musl gives a thread by default."""

SCRIPT = """
import os, sys, threading
import numpy as np
import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import payload_size, step_from_tensors, tensor_elements
from tests.lib.random_steps import random_step
from tests.lib.save_cases import arguments, random_inputs
from tests.lib.sending import LARGEST, same

def on_a_small_stack(call, *arguments):
    print(call, flush=True)
    got = []
    threading.stack_size(int(sys.argv[1]))
    thread = threading.Thread(target=lambda: got.append(call(*arguments)))
    thread.start()
    threading.stack_size(0)
    thread.join()
    return got[0]

step, save = random_step(**LARGEST), "speculate_save_output_topk"
tensors = [np.zeros(n, t) for n, t in zip(tensor_elements("spec_topk"), ("int64", "float32", "int64"))]
inputs = arguments(save, random_inputs(save, 512, 21, 1))
with fp.Receiver("spec_topk") as receiver:
    for dialect in "packed", "compact":
        with fp.Sender("spec_topk", dialect=dialect) as sender:
            on_a_small_stack(sender.send, step, 0)
            assert same(on_a_small_stack(receiver.receive, 0), step)
            sender.send(step, 0)
            on_a_small_stack(ops.speculate_get_output_topk, *tensors, 20, 0, False)
            assert same(step_from_tensors("spec_topk", *tensors), step)
        payload = on_a_small_stack(fp.encode, step, dialect)
        assert dialect == "compact" or len(payload) >= payload_size("spec_topk") - 4
        mtype = 1 + (dialect == "compact")
        assert same(on_a_small_stack(lambda: fp.decode(payload, "spec_topk", mtype=mtype)), step)
    on_a_small_stack(ops.speculate_save_output_topk, *inputs)
    assert receiver.receive(0).batch == 512
print("ended")
"""


def test_the_largest_message(raised_limits, ops_queue):
    done = subprocess.run(python(SCRIPT, STACK), timeout=PATIENCE, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["ended"], (done.stdout, done.stderr)
