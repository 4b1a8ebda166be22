"""Program: the trial's speculative scripts through FastDeploy's own ZeroMQ client and server.

FastDeploy's own class processes each step from its tensors, as from a queue; ours from a frame that
FastDeploy's classes have sent through a real socket.  Prints one JSON object: how many scripts, and the first
difference.
"""

import importlib
import json
import os

from fd_postproc._core import step_from_tensors
from fd_postproc.fastdeploy.engine.processor_class import make_class
from fd_postproc.fastdeploy.worker.stream_builder import numbering
from tests.reference import ReferenceStep, encode_frame
from tools.accept import classes as compatibility
from tools.accept import random_steps

module = importlib.import_module("fastdeploy.output.token_processor")
zmq = importlib.import_module("zmq")
messages = importlib.import_module("fastdeploy.inter_communicator")
name = f"fd_postproc_drafts_{os.getpid()}"
server = messages.ZmqIpcServer(name=name, mode=zmq.PULL)
client = messages.ZmqIpcClient(name=name, mode=zmq.PUSH)
client.connect()

through = []


def over_socket(real):
    class OverSocket(make_class(real)):
        """Takes what is in its tensors from the socket instead."""

        def _process_batch_output(self):
            tensors = [self.output_tokens]
            if self.use_logprobs:
                tensors += [self.output_scores, self.output_ranks]
            step = step_from_tensors(self.channel, *tensors, layout=self.layout)
            sender, number = numbering.next()
            client.send_pyobj(encode_frame(ReferenceStep.from_step(step), sender=sender, seq=number))
            pair[0].box.switches["FD_USE_GET_SAVE_OUTPUT_V1"] = True
            self.zmq_server = server
            lost = self.counters.lost_steps, self.counters.malformed
            self.parts.loop.round(self.parts.socket, self.parts.streamed, self.counters.stages)
            assert lost == (self.counters.lost_steps, self.counters.malformed)
            through.append(number)

    return OverSocket


pair, facts = compatibility.prepared(module, over_socket)
scripts = [random_steps.script(number, facts) for number in range(64)]
scripts = [one for one in scripts if one.channel.startswith("spec") and not one.masks]
found = None
for script in scripts:
    found = compatibility.first_difference_in(script, *pair, facts)
    if found:
        found = f"{script.name}: {found}"
        break
server.close()
print("told: " + json.dumps({"scripts": len(scripts), "steps": len(through), "difference": found}))
