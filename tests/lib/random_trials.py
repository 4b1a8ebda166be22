"""Program: random steps through FastDeploy's own class and ours, in the real FastDeploy on the import path.

``python random_trials.py SEED RESULTS [HOW]`` runs scripts as the plug-in's trial does until so many results
were compared, and prints one JSON object: what was run, and the first difference, if any.  A script is made
of its number, which the difference names.  HOW says what is done besides:

``looked``
    Both classes' results are looked at before they go.
``packed``
    Ours are packed at once, and by msgpack.
``sent``
    Speculative steps come to ours as frames that FastDeploy's own ZeroMQ client and server have carried.
"""

import dataclasses
import importlib
import json
import os
import sys
import time

from fd_postproc._core import step_from_tensors
from fd_postproc.fastdeploy.engine.processor_class import make_class
from fd_postproc.fastdeploy.worker.stream_builder import numbering
from tests.lib.looked_at import looking
from tests.lib.packed_results import Packed, checking
from tests.reference import ReferenceStep, encode_frame
from tools.accept import classes as compatibility
from tools.accept.random_steps import script


def main(seed, wanted, how=""):
    time.time = lambda: 1_800_000_000.0  # the same for both classes: sums of many stamps are compared
    importlib.import_module("tools.accept.trial")._BETWEEN_STEPS = 0.0
    server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
    packed, sent = Packed(getattr(server, "_msgpack_default", None)), []
    ways = {
        "packed": lambda real: checking(make_class(real), packed),
        "sent": lambda real: _over_zmq(real, sent, lambda: pair[0].box),
    }
    module = importlib.import_module("fastdeploy.output.token_processor")
    pair, facts = compatibility.prepared(module, ways.get(how, make_class))
    if how == "looked":
        pair = tuple(one._replace(cls=looking(one.cls)) for one in pair)
    counted = _count_results(pair[0].cls)
    told = {"scripts": 0, "refused_by_stock": [], "difference": None, "by": {}}
    number = seed
    while counted[0] < wanted and told["difference"] is None:
        one = script(number, facts)
        number += 1
        if how == "sent" and (not one.channel.startswith("spec") or one.masks):
            continue
        before = counted[0]
        try:
            told["difference"] = compatibility.first_difference_in(one, *pair, facts) or packed.difference
        except RuntimeError as error:  # FastDeploy's own class fails
            told["refused_by_stock"].append(f"{one.name}: {error}")
        if told["difference"]:
            told["difference"] = f"{one.name} ({one.channel}, {one.role}): {told['difference']}"
            told["script"] = repr(dataclasses.asdict(one))
        told["scripts"] += 1
        kind = f"{one.channel} {one.role}"
        told["by"][kind] = told["by"].get(kind, 0) + counted[0] - before
    told["results"], told["masks"], told["experts"] = counted
    told |= {"packed": packed.results, "asked": packed.asked, "sent": len(sent)}
    print("\ntold: " + json.dumps(told), flush=True)
    os._exit(0)  # FastDeploy's ZeroMQ server is open


def _over_zmq(real, sent, box):
    """Our class, which takes what is in its tensors out of a socket instead."""
    zmq = importlib.import_module("zmq")
    messages = importlib.import_module("fastdeploy.inter_communicator")
    name = f"fd_postproc_drafts_{os.getpid()}"
    server = messages.ZmqIpcServer(name=name, mode=zmq.PULL)
    client = messages.ZmqIpcClient(name=name, mode=zmq.PUSH)
    client.connect()

    class OverSocket(make_class(real)):
        def _process_batch_output(self):
            tensors = [self.output_tokens]
            if self.use_logprobs:
                tensors += [self.output_scores, self.output_ranks]
            step = step_from_tensors(self.channel, *tensors, layout=self.layout)
            sender, number = numbering.next()
            client.send_pyobj(encode_frame(ReferenceStep.from_step(step), sender=sender, seq=number))
            box().switches["FD_USE_GET_SAVE_OUTPUT_V1"] = True
            self.zmq_server = server
            lost = self.counters.lost_steps, self.counters.malformed
            self.parts.loop.round(self.parts.socket, self.parts.streamed, self.counters.stages)
            assert lost == (self.counters.lost_steps, self.counters.malformed)
            sent.append(number)

    return OverSocket


def _count_results(stock):
    """Results that FastDeploy's own class has put; of these, those with masks, and those with experts."""
    counted = [0, 0, 0]
    trial = importlib.import_module("tools.accept.trial").Trial
    run = trial.run

    def run_and_count(self):
        found = run(self)
        if type(self.processor) is stock:
            put = [result for results in self.scheduler.puts for result in results]
            counted[0] += len(put)
            counted[1] += sum(getattr(one.outputs, "sampling_mask", None) is not None for one in put)
            counted[2] += sum(getattr(one, "routing_data", None) is not None for one in put)
        return found

    trial.run = run_and_count
    return counted


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
