"""Replays a trace on a class and judges each step by the recording, or by what is right in its place.

From a trace's first mark on, ``golden_steps/outcomes.gz`` has what a step must do: worked out once by an
independent model from the bytes of the messages, which knew the recorded behaviour, and the better outcome
where FastDeploy has a defect.  Program: ``python -m tests.lib.step_replay.judge`` writes that file anew, from
our class: whoever runs it shows what has changed.
"""

import functools
import gzip
import json
import os
from itertools import chain

from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.replay import Replay
from tests.lib.step_replay.traces import FOLDER, Trace, trace_names

DRAFT = 4
LOOP = ("op", "health")  # the receive loop's doings
RESULT = ("request_id", "prompt", "output_type", "finished", "num_cached_tokens", "error_code", "error_msg")
RESULT += ("num_input_image_tokens", "num_input_video_tokens", "ic_req_data", "prompt_token_ids_len", "extra")
OUTPUT = ("index", "send_idx", "token_ids", "draft_token_ids")
OUTPUT += ("logprob", "top_logprobs", "draft_top_logprobs")
DELIVERY = ("put", "buffered", "raised", "mask_reads", "health")
OUTCOMES = FOLDER / "outcomes.gz"


@functools.cache
def outcomes():
    """By trace, what each step from the first marked one on must do; None where other traces have none."""
    if os.environ.get("FD_POSTPROC_GOLDEN_STEPS") and not OUTCOMES.exists():
        return None
    return json.loads(gzip.decompress(OUTCOMES.read_bytes()))


def as_told(result):
    """The part of a result, as the scheduler got it, that is judged."""
    told = {key: result.get(key) for key in RESULT}
    return told | {"outputs": {key: result["outputs"][key] for key in OUTPUT}}


class Judged(Replay):
    """A replay that tells what each step has done, and keeps the ledger."""

    def _build(self):
        super()._build()
        self.ledger = Ledger(self)

    def _apply(self, event):
        super()._apply(event)
        self.ledger.ended.discard(event.get("insert"))

    def _step(self, event):
        processor = self.processor
        before = processor.total_step, processor.number_of_output_tokens
        actual = super()._step(event)
        puts = [[as_told(result) for result in results] for results in actual["put"]]
        self.ledger.enter(puts)
        if "clear_data" in event:  # how many calls it makes is its own business
            puts = [[*chain(*puts)]]
        tasks = actual["tasks"].items()
        self.told = {
            "put": puts,
            "rm_calls": actual["rm_calls"],
            "appended": {name: task["appended"] for name, task in tasks if "appended" in task},
            "tokens_counter": actual["tokens_counter"],
            "steps": processor.total_step - before[0],
            "tokens": processor.number_of_output_tokens - before[1],
            "on_decode_tokens": actual.get("on_decode_tokens", []),
        }
        return actual


class Ledger:
    """Every token of a request reaches its client once and in order, and its end once."""

    def __init__(self, replay):
        self.replay = replay
        self.before = {name: len(request.output_token_ids) for name, request in replay.requests.items()}
        self.delivered = {name: [] for name in replay.requests}
        self.ended = set()
        self.lines = []

    def enter(self, puts):
        """Note what was put."""
        for result in (result for results in puts for result in results):
            name = result["request_id"]
            if result["output_type"] == DRAFT:
                continue
            if name in self.ended:
                self.lines.append(f"{name}: a result after its end")
            if result["finished"]:
                self.ended.add(name)
            if result["outputs"]["send_idx"] is not None and result["error_msg"] != "Aborted":
                self.delivered[name] += result["outputs"]["token_ids"]

    def close(self):
        """What does not add up at the end of the trace."""
        for result in self.replay.processor._batch_result_buffer or ():
            self.delivered[result.request_id] += result.outputs.token_ids
        for name, request in self.replay.requests.items():
            tokens = request.output_token_ids[self.before[name] :]
            if self.replay.trace.mode["internal_adapter"]:
                tokens = [token for token in tokens if token not in request.eos_token_ids]
            if tokens != self.delivered[name]:
                self.lines.append(f"{name}: has {tokens}, its client {self.delivered[name]}")
        return self.lines


def faults(trace, cls, deliver, ignore=LOOP, told=None, **options):
    """Lines that say what is wrong in the first wrong step, or at the end.

    Parameters
    ----------
    trace : Trace
        Its marks say where the recording is not to be repeated.
    cls, deliver
        As of `Replay`.
    ignore : tuple of str, optional
        Parts of the recording that `deliver` has no share in.
    told : list, optional
        Gets what each step has done from the first mark on, which is not judged then.
    **options
        Of `Judged`.
    """
    recorded, drifting, cleared = True, False, False
    right = outcomes() if told is None else None
    due, marked_before = iter((right or {}).get(trace.name, ())), False
    with Judged(trace, cls, deliver, **options) as replay:
        for step in replay.steps():
            lines = []
            marked = "upstream_defect" in step.event
            marked_before |= marked
            if marked_before and told is not None:
                told.append(replay.told)
            elif marked_before and right is not None:
                lines = [f"outcome: {line}" for line in differences(next(due), replay.told)]
            cleared |= "clear_data" in step.event
            drifting |= marked
            if marked and "empty_receive" in step.event:
                replay.masks.waiting = None  # upstream read one for a step that did not come
            if step.expected["raised"] and step.event.get("kind") != "draft":
                recorded = False  # the recorded state is another one from here on
            if recorded:
                ignored = (*ignore, *DELIVERY) if drifting else ignore
                if cleared:
                    ignored = (*ignored, "spec_tables")  # upstream keeps those of what it clears
                lines += differences(step.expected, step.actual, ignore=ignored, sum_tolerance=1e-9)
                drifting &= step.expected.get("buffered") != step.actual.get("buffered")
            if lines:
                return [f"step {step.number}: {line}" for line in lines]
        lines = [] if cleared else replay.ledger.close()
        if recorded:
            lines += differences(*replay.end(), sum_tolerance=1e-9)
        return [f"end: {line}" for line in lines]


def main():
    """Write the outcomes of all marked traces."""
    from tests.lib.plugged import plugin_class
    from tests.lib.step_replay.deliver import through_bytes

    found = {}
    for trace in map(Trace.load, trace_names()):
        if any("upstream_defect" in event for event in trace.events):
            faults(trace, plugin_class(), through_bytes, told=found.setdefault(trace.name, []))
    OUTCOMES.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
