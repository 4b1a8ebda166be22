"""Replays a trace on a class and judges each step: by the recording where it stands, by the model always."""

from itertools import chain

from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.model import DRAFT, Model, as_told
from tests.lib.step_replay.replay import Replay
from tests.lib.step_replay.traces import payload

LOOP = ("op", "health")  # the receive loop's doings
MARKS = (
    "a draft message over a slot without a task raises",
    "a draft with no buffered target puts an empty list",
    "a request finished",
    "an accept count above 6 raises",
    "clear_data builds finished results but never delivers them",
    "delivery",  # of random steps
    "no column count in the header",
    "recovery before any accepted token divides by zero",
    "shorter draft batch",
    "speculative decoding with expert and data parallel does not test for a failed receive",
    "targets and drafts are paired by position",
    "the step raised",
    "two targets without a draft between them",
)
DELIVERY = ("put", "buffered", "raised", "mask_reads", "health")


class Judged(Replay):
    """A replay in which the model is asked before each event and the ledger is kept after it.

    Parameters
    ----------
    columns_needed : bool, optional
        Of `Model`.
    **options
        Of `Replay`.
    """

    def __init__(self, trace, cls, deliver, columns_needed=False, **options):
        super().__init__(trace, cls, deliver, **options)
        self._columns_needed = columns_needed

    def _build(self):
        super()._build()
        self.model, self.ledger = Model(self, self._columns_needed), Ledger(self)

    def _apply(self, event):
        super()._apply(event)
        self.ledger.ended.discard(event.get("insert"))

    def _step(self, event):
        processor, model = self.processor, self.model
        if "message" in event:
            outcome = model.message(payload(event))
        else:
            outcome = model.clear_data() if "clear_data" in event else model.nothing()
        before = processor.total_step, processor.number_of_output_tokens
        actual = super()._step(event)
        puts = [[as_told(result) for result in results] for results in actual["put"]]
        self.ledger.enter(puts)
        if "clear_data" in event:  # how many calls it makes is its own business
            puts, outcome.puts = [[*chain(*puts)]], [[*chain(*outcome.puts)]]
        told = {
            "put": puts,
            "rm_calls": actual["rm_calls"],
            "appended": {
                name: task["appended"] for name, task in actual["tasks"].items() if "appended" in task
            },
            "tokens_counter": actual["tokens_counter"],
            "steps": processor.total_step - before[0],
            "tokens": processor.number_of_output_tokens - before[1],
            "on_decode_tokens": actual.get("on_decode_tokens", []),
        }
        due = {
            "put": [[as_told(result) for result in results] for results in outcome.puts],
            "rm_calls": outcome.calls,
            "appended": outcome.appended,
            "tokens_counter": outcome.counters,
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "on_decode_tokens": outcome.decode_tokens,
        }
        self.verdict = differences(due, told)
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
        for result in self.replay.model.waiting or ():
            self.delivered[result["request_id"]] += result["outputs"]["token_ids"]
        for name, request in self.replay.requests.items():
            tokens = request.output_token_ids[self.before[name] :]
            if self.replay.trace.mode["internal_adapter"]:
                tokens = [token for token in tokens if token not in request.eos_token_ids]
            if tokens != self.delivered[name]:
                self.lines.append(f"{name}: has {tokens}, its client {self.delivered[name]}")
        return self.lines


def faults(trace, cls, deliver, ignore=LOOP, **options):
    """Lines that say what is wrong in the first wrong step, or at the end.

    Parameters
    ----------
    trace : Trace
        Its marks say where the recording is not to be repeated.
    cls, deliver
        As of `Replay`.
    ignore : tuple of str, optional
        Parts of the recording that `deliver` has no share in.
    **options
        Of `Judged`.
    """
    recorded, drifting, cleared = True, False, False
    with Judged(trace, cls, deliver, **options) as replay:
        for step in replay.steps():
            lines = [f"model: {line}" for line in replay.verdict]
            marked = "upstream_defect" in step.event
            if marked and not step.event["upstream_defect"].startswith(MARKS):
                lines.append(f"unknown mark: {step.event['upstream_defect']}")
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
