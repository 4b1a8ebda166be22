"""The traces of `golden_streams` on a FastDeploy tree's own classes: its class and ours, step by step.

A program: real_tree/test_streams.py.  What the tree's class does is the measure, not the record, which is
that of 2.6; a trace is followed to the first step in which FastDeploy loses something.
"""

import dataclasses
import importlib
import json
import signal
import sys

from tests.lib.plugged import plugin_class
from tests.lib.step_replay.compare import differences

replay = importlib.import_module("tests.lib.stream_replay")
# 2.5 and before keep what they have been told of a transfer for good.
OURS = (*replay.OURS, "metrics", "prefill_result_status")
module = importlib.import_module("fastdeploy.output.token_processor")
HAS_MASKS = "sampling_mask" in {field.name for field in dataclasses.fields(module.CompletionOutput)}
stock, ours = module.TokenProcessor, plugin_class()


class Endless(BaseException):
    """This version waits for a cache transfer of which nobody has told the script."""


class Queue(replay.Queue):
    def get_finished_req(self):
        if not self.answers and self.polls > 5000:
            raise Endless
        return super().get_finished_req()


replay.Queue = Queue


def records(trace, cls, deliver):
    """What each step of a trace did, up to the first that is lost."""
    with replay.StreamReplay(trace, cls, deliver) as replaying:
        steps = replaying.steps()
        for number in range(sum("after" in event for event in trace.events)):
            if str(number) in replay.outcomes().get(trace.name, ()):
                return
            try:
                yield next(steps).actual
            except Endless:
                return


def lost(record):
    return record["raised"] is not None or record.get("loop_died") is not None or record.get("swallowed")


signal.alarm(100)  # what spins is ended
compared, wrong, skipped = 0, {}, {}
for name, trace in replay.traces().items():
    if name == "v1_h_speculative" or trace.mode["local_data_parallel_id"]:  # refused; another rank spins
        continue
    if not HAS_MASKS and any("sampling_mask" in event.get("stream", {}) for event in trace.events):
        skipped[name] = "no sampling masks"
        continue
    try:
        expected = list(records(trace, stock, replay.through_loop))
    except (AttributeError, TypeError, ImportError) as error:  # what this tree does not have
        skipped[name] = f"{type(error).__name__}: {error}"
        continue
    for number, (one, other) in enumerate(
        zip(expected, records(trace, ours, replay.one_message), strict=False)
    ):
        if lost(one):
            break
        lines = differences(one, other, ignore=OURS, sum_tolerance=1e-9)
        if lines:
            wrong[name] = [number, *lines[:4]]
            break
        compared += 1
print("told: " + json.dumps({"compared": compared, "wrong": wrong, "skipped": skipped}))
sys.stdout.flush()
