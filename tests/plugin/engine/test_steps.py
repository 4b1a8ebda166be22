"""FastDeploy's recorded steps on the plug-in's class (golden_steps/README.md), and random ones on both.

Events are judged by the recording.  A marked event is a defect of FastDeploy's: from there on
``outcomes.gz`` says what is right, alone after a step that FastDeploy lost.
"""

from collections import Counter

import pytest

from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.step_replay.traces import Trace, tables, trace_names
from tools.accept import classes, random_steps

pytestmark = pytest.mark.framework

# A message with flag 5, which no sender of FastDeploy's writes: its class takes it for a target, the gate for
# a message of another channel (test_numbers.py).
REFUSED = "spec_topk_h_other_flag"
NAMES = [name for name in trace_names() if name != REFUSED]


def two_channels_of_each(names):
    """Of each script by hand two channels at most; every channel has its turn, the others are nightly."""
    of_script = {}
    for name in names:
        of_script.setdefault(name.partition("_h_")[2], []).append(name)
    for turn, found in enumerate(of_script.values()):
        yield from {found[turn % len(found)], found[(turn + 1) % len(found)]}


BY_HAND = [name for name in NAMES if "_h_" in name]
RANDOM = sorted({*NAMES} - {*BY_HAND})
IN_THE_SUITE = [*two_channels_of_each(BY_HAND), *RANDOM[::20]]
THROUGH_TENSORS_TOO = [*BY_HAND[::8], *RANDOM[::40]]


def faults_of(name, cls, way="through_bytes", **options):
    """What is wrong in a trace on a class that is given its messages in some way."""
    judge, deliver = imported("tests.lib.step_replay.judge"), imported("tests.lib.step_replay.deliver")
    return judge.faults(Trace.load(name), cls, getattr(deliver, way), **options)


def faulty(names, cls, way="through_bytes"):
    return {name: lines for name in names if (lines := faults_of(name, cls, way))}


@tables(IN_THE_SUITE, NAMES)
def test_golden_step_traces_replay_on_the_plugin(names):
    assert faulty(names, plugin_class()) == {}


# FastDeploy's ops write no token where a message has no column: in the tensors is what was there before.
@tables(THROUGH_TENSORS_TOO, [name for name in NAMES if "cols_0" not in name])
def test_golden_step_traces_replay_through_tensors(names):
    assert faulty(names, plugin_class(), "through_tensors") == {}


THROUGH_A_QUEUE = (
    *("plain_h_empty_batch", "plain_h_pd_prefill", "topk_h_preempt_v1", "topk_h_cols_0"),
    *("spec_h_eos_position", "spec_h_count_7", "spec_topk_h_draft_missing", "spec_topk_h_clear_data"),
    *("spec_topk_r900_n64", "topk_h_dp2_ep", "spec_topk_h_dp2"),
)


@each("name", THROUGH_A_QUEUE)
def test_step_traces_through_a_queue_and_the_receive_loop(name, raised_limits, ops_queue):
    if name not in NAMES:
        pytest.skip(f"{name} is not among the traces")
    made = []

    class Noted(plugin_class()):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            made.append(self)

    assert faults_of(name, Noted, "through_queue", ignore=("op",)) == []
    (processor,) = made
    processor.stop(0)
    assert processor.counters.malformed == (name == "spec_h_count_7")
    assert processor.counters.lost_steps == 0


# ---- Random steps in every channel and role -------------------------------------------------------------


@pytest.mark.parametrize("count", [16, pytest.param(2000, marks=pytest.mark.nightly)])
def test_random_steps_are_equal_on_the_plugin(count, monkeypatch):
    """A difference comes with the number of its script, which is all that the script is made of."""
    monkeypatch.setattr("tools.accept.trial._BETWEEN_STEPS", 0.0)
    with classes.trusting():
        pair, facts = classes.prepared(imported("fastdeploy.output.token_processor"))
        kinds, found = Counter(), {}
        with pair[0].box:
            for number in range(count):
                script = random_steps.script(number, facts)
                kinds[script.channel, script.role] += 1
                if difference := classes.first_difference_in(script, *pair, facts):
                    found[script.name] = difference
    assert found == {}
    assert len(kinds) == 4 * len({*random_steps.SPLITWISE_ROLES})


# ---- The judges notice ---------------------------------------------------------------------------------


def late_counter(results):
    for result in results:
        result.outputs.send_idx += 1
    return results


def end_without_error(results):
    for result in results:
        result.error_msg = None
    return results


@each(
    "tamper, name, where",
    [
        (late_counter, "plain_h_basic", "put[0][0].outputs.send_idx"),
        (late_counter, "spec_topk_h_draft_missing", "outcome: put"),
        (end_without_error, "spec_h_recover_first", "outcome: put"),
        (lambda results: results[:-1], "topk_h_none_queue", "put"),
        (lambda results: results[::-1], "spec_topk_h_draft_shorter", "outcome: put"),
    ],
)
def test_results_that_are_changed_on_their_way_are_noticed(tamper, name, where):
    class Planted(plugin_class()):
        def __init__(self, cfg, cached_generated_tokens, engine_worker_queue, split_connector):
            put = cached_generated_tokens.put_results
            cached_generated_tokens.put_results = lambda results: put(tamper(results))
            super().__init__(cfg, cached_generated_tokens, engine_worker_queue, split_connector)

    lines = faults_of(name, Planted)
    assert any(where in line for line in lines), lines
