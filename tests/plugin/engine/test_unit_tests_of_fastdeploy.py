"""Objects used as FastDeploy's own unit tests use them: what works with its class works with the plug-in's.

Those tests make objects without __init__, replace methods by mocks, and patch names of the module.  Here both
classes are treated alike, and must do alike; the tests themselves run in real trees.
"""

import functools
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.lib.plugged import plugin_class, stock_class
from tests.lib.quiet import imported
from tests.lib.rig import END, Rig
from tests.lib.rows import each

pytestmark = pytest.mark.framework

CHANNELS = ("plain", "topk", "spec", "spec_topk")
DRAFT = 4
OURS = functools.cache(plugin_class)


def module():
    return imported("fastdeploy.output.token_processor")


def bare(cls, channel, names=("a", "b")):
    """A rig whose processor was made without __init__, and has what FastDeploy's has."""
    rig = Rig(channel, names, cls=stock_class(), enable_draft_logprob=channel == "spec_topk")
    processor = cls.__new__(cls)
    vars(processor).update(vars(rig.processor))
    rig.processor = processor
    return rig


def outcome(cls, channel, change=None):
    """What such an object does in some steps; None where one raises, delivers nothing, or an error."""
    rig = bare(cls, channel)
    finalizer = rig.processor._finalizer
    steps = [({0: [5, 6], 1: [8, 9]}, 3), ({0: [3], 1: [4]}, DRAFT), ({0: [10], 1: [END, 11]}, 3)]
    if not channel.startswith("spec"):
        steps = [({slot: row[:1] for slot, row in tokens.items()}, flag) for tokens, flag in steps]
    try:
        if change is not None:
            change(rig)
        for tokens, flag in steps:
            if flag != DRAFT or channel == "spec_topk":
                rig.through_tensors(tokens, flag=flag)
        as_told = imported("tests.lib.step_replay.judge").as_told
        puts = [[as_told(one.to_dict()) for one in results] for results in rig.sink.puts]
        state = dict(rig.processor.tokens_counter), rig.manager.calls, rig.manager.stop_flags[:2]
    except Exception:
        return None
    finally:
        finalizer()
    failed = any(result["error_code"] == 500 for results in puts for result in results)
    return (
        None
        if failed or not puts
        else (puts, [task.output_token_ids for task in rig.requests.values()], state)
    )


def as_good(channel, change=None):
    """Whether FastDeploy's class does anything; ours does the same then."""
    stock = outcome(stock_class(), channel, change)
    if stock is not None:
        assert outcome(OURS(), channel, change) == stock
    return stock is not None


@each("get", [None, lambda key, default=None: None, lambda key, default=None: default])
@each("channel", CHANNELS)
def test_an_object_without_init(channel, get):
    assert as_good(channel, lambda rig: get and setattr(rig.requests["a"], "get", get))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
@each("channel, part", [("spec_topk", "processor"), ("plain", "task"), ("plain", "cfg")])
def test_what_fastdeploys_class_can_do_without_ours_can(channel, part, every):
    """Attributes of the object, of a task and of the configuration, one less at a time."""
    holders = {
        "processor": lambda rig: [rig.processor],
        "task": lambda rig: [rig.requests["a"]],
        "cfg": lambda rig: [rig.processor.cfg, *vars(rig.processor.cfg).values()],
    }[part]
    rig = bare(stock_class(), channel)
    rig.close()
    names = [(number, name) for number, holder in enumerate(holders(rig)) for name in vars(holder)][::every]
    done = {name: as_good(channel, lambda rig: delattr(holders(rig)[at], name)) for at, name in names}  # noqa: B023
    assert 0 < sum(done.values()) < len(done)


HOOKS = (
    *("_recycle_resources", "_record_metrics", "_record_first_token_metrics", "_record_completion_metrics"),
    *("_record_speculative_decoding_metrics", "_compute_speculative_status", "_finalize_routing"),
    *("_is_decode_stage", "postprocess", "_put_abort_results"),
)


@each("hook", HOOKS)
@each("channel", ["plain", "spec_topk"])
def test_a_replaced_method_is_called_as_often(channel, hook):
    """By both classes with as many arguments, positional or not."""
    counts = []
    for cls in (stock_class(), plugin_class()):
        rig = bare(cls, channel, "abc")
        rig.processor.scheduler_metrics_logger = mock.Mock()
        replaced = mock.Mock(return_value=None)
        setattr(rig.processor, hook, replaced)
        rig.through_tensors({0: [5], 1: [6], 2: [7]})
        rig.manager.to_be_aborted_req_id_set.add("c")
        rig.through_tensors({0: [5], 1: [END], 2: -9})
        counts.append([len(call.args) + len(call.kwargs) for call in replaced.call_args_list])
        rig.close()
    assert counts[0] == counts[1]


@each("channel", ["plain", "spec_topk"])
def test_switches_are_read_at_each_step(channel):
    """Patched on the module that FastDeploy reads them from, or that whole module replaced."""
    envs = {"ENABLE_V1_KVCACHE_SCHEDULER": 0, "FD_ENABLE_INTERNAL_ADAPTER": 1, "FD_USE_GET_SAVE_OUTPUT_V1": 0}
    with mock.patch.object(module(), "envs", SimpleNamespace(**envs)):
        puts, _, (_, calls, _) = outcome(plugin_class(), channel)
        assert ["_recycle_block_tables", "b"] in calls
        assert END not in puts[-1][-1]["outputs"]["token_ids"]
        assert as_good(channel)


def test_stamps_are_set_by_the_request():
    """One whose metrics do something else in record_recv_token is asked, each time."""
    asked, rig = [], bare(OURS(), "plain")

    class Stamps(imported("fastdeploy.engine.request").RequestMetrics):
        def record_recv_token(self, *arguments):
            asked.append("token")
            super().record_recv_token(*arguments)

    rig.requests["a"].metrics = Stamps(arrival_time=1.0, inference_start_time=2.0, preprocess_end_time=1.5)
    for token in (5, 6, 8):
        rig.through_tensors({0: [token], 1: [9]})
    assert asked == ["token"] * 3  # the first, too: by record_recv_first_token
    rig.close()
