"""Random steps in every mode on FastDeploy's class and on the plug-in's: equal but for FastDeploy's defects.

A failure names channel and seed, which is all that the run is made of.
"""

import pytest

from tests.lib.plugged import plugin_class, stock_class
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework

ROLES = ("mixed", "prefill", "decode")


def run(seed, channel, steps):
    """What is wrong in a random run; the trace; and the seed's mode."""
    scripts, deliver, judge = (
        imported(f"tests.lib.step_replay.{name}") for name in ("scripts", "deliver", "judge")
    )
    mode = {"splitwise_role": ROLES[seed % 3], "v1_kvcache_scheduler": seed % 2 == 0}
    script = scripts.Script(seed, channel, steps, mode)
    tensors = {"columns_needed": True, "metrics_every": 4}
    trace, unexplained = scripts.recorded(script, stock_class(), deliver.through_tensors, **tensors)
    assert not unexplained, f"the model is wrong, or the stock class: {unexplained}"
    way, options = (deliver.through_tensors, tensors) if seed % 5 == 4 else (deliver.through_bytes, {})
    return judge.faults(trace, plugin_class(), way, **{"metrics_every": 4} | options), trace


# Each role twice, half of them from tensors (seed % 5 == 4).
@pytest.mark.parametrize(
    ("channel", "seeds"), [("plain", (0, 14)), ("topk", (1, 9)), ("spec", (2, 4)), ("spec_topk", (14, 1))]
)
def test_random_steps_are_equal_on_the_plugin(channel, seeds):
    for seed in seeds:
        lines, trace = run(seed, channel, steps=30)
        assert lines == [], (seed, trace.mode)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("channel", ["plain", "topk", "spec", "spec_topk"])
def test_more_random_steps_are_equal_on_the_plugin(channel, block):
    for seed in range(1000 + 10 * block, 1010 + 10 * block):
        lines, trace = run(seed, channel, steps=60)
        assert lines == [], (seed, trace.mode)


def test_random_steps_meet_what_they_are_for():
    """Of all that can happen, everything does."""
    scripts, deliver = imported("tests.lib.step_replay.scripts"), imported("tests.lib.step_replay.deliver")
    events, raised, puts, roles = set(), set(), [], set()
    for seed in range(4):
        script = scripts.Script(seed, "spec_topk", 30, {"enable_draft_logprob": True})
        trace, _ = scripts.recorded(
            script, stock_class(), deliver.through_tensors, columns_needed=True, metrics_every=99
        )
        roles.add(trace.mode["splitwise_role"])
        for event in trace.events:
            events |= set(event)
            if "after" in event:
                raised.add(event["after"]["raised"])
                puts += [result for results in event["after"]["put"] for result in results]
    assert events >= {"insert", "preempt", "abort", "set_task", "stop_flag", "clear_slot", "message"}
    assert raised >= {None, "AttributeError"}
    assert any(result["finished"] for result in puts)
    assert any(result["error_msg"] == "Aborted" for result in puts)
    assert any(result["outputs"]["draft_top_logprobs"] for result in puts)
    assert len(roles) > 1
