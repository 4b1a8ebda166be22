"""The gauges of speculative decoding: totals at every step, told later."""

import pytest

from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.rig import Rig

pytestmark = pytest.mark.framework

STEPS = [{0: [30, 31], 1: [40]}, {0: [32], 1: -9}, {0: [33, 34, 35], 1: [41, 42]}, {0: [36, 37]}]


@pytest.fixture(params=["mtp", "ngram"])
def method(request):
    return request.param


def rig_after_two_steps(cls, method):
    """The first step makes the gauges and tells them."""
    rig = Rig("spec", ["a", "b"], cls=cls, method=method)
    rig.process({0: [20, 25], 1: [21]})
    rig.process({0: [22], 1: [23]})
    return rig


def told():
    """Every metric of speculative decoding, as an operator sees it."""
    collect = imported("prometheus_client").REGISTRY.collect
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collect()
        for sample in metric.samples
        if "spec_decode" in sample.name and not sample.name.endswith("_created")
    }


def after_all(rig):
    for step in STEPS:
        rig.process(step)
    assert rig.escaped == []


@pytest.fixture
def slow(method):
    """A processor that will not tell its gauges by itself for long."""
    cls = plugin_class()
    cls.gauge_period = 1000.0
    rig = rig_after_two_steps(cls, method)
    yield rig
    rig.close()


def test_no_step_is_missing_when_they_are_told(slow, method):
    after_all(slow)
    slow.processor.report_gauges()
    late = told()
    assert not slow.processor.gauges_wait
    at_every_step = rig_after_two_steps(plugin_class(), method)  # equal to FastDeploy's in the golden traces
    after_all(at_every_step)
    at_every_step.close()
    assert told() == late


def test_nobody_looks_up_from_waiting_to_tell(slow):
    slow.process({0: [24], 1: [25]})
    assert slow.processor.gauges_wait
    assert slow.processor._patience() is None  # a wait with a limit makes messages late


def test_they_are_told_at_once_where_fastdeploys_method_is_called(slow):
    slow.process({0: [24], 1: [25]})
    processor = slow.processor
    processor.output_tokens = imported("paddle").zeros_like(processor.output_tokens)
    assert processor.gauges_wait
    processor._process_batch_output()
    assert not processor.gauges_wait
