"""The plug-in on a FastDeploy whose metrics are updated by name, and may have labels."""

import importlib.util
import sys

import pytest

from tests.lib.fakes import Clock
from tests.lib.metrics_by_name import by_name, make_manager
from tests.lib.quiet import imported
from tests.lib.rig import Rig

pytestmark = pytest.mark.framework

VARIANT = "fastdeploy.output.token_processor_by_name"
LABELS = {"none": {}, "one": {"model_id": "m"}}


@pytest.fixture
def module(monkeypatch):
    """The double's module loaded once more."""
    real = imported("fastdeploy.output.token_processor")
    spec = importlib.util.spec_from_file_location(VARIANT, real.__file__)
    variant = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, VARIANT, variant)
    spec.loader.exec_module(variant)
    activation = imported("fd_postproc.fastdeploy.engine.activation")
    monkeypatch.setattr(activation, "decide", lambda *_: activation.Decision(True))  # it has no source
    return variant


def make_class(module):
    cls = imported("fd_postproc.fastdeploy.engine.processor_class").make_class(module)
    cls.gauge_period = 0
    return cls


STEPS = (  # tokens by slot; 2 ends a request
    {0: [3], 1: [3], 2: [3]},
    {0: [4], 1: [4], 2: [4]},
    {0: [5], 1: [2], 2: [5]},
    {0: [6], 2: [6]},
)


def told(module, cls, channel, monkeypatch):
    """The samples after some steps in which requests begin, run and end, and what the class complained of."""
    module.time = clock = Clock()
    monkeypatch.setattr("tests.lib.rig.time", clock)
    rig = Rig(channel, ["a", "b", "c"], cls=cls)
    processor = rig.processor
    assert type(processor) is cls  # it did not fall back
    for tokens in STEPS:
        rig.through_tensors(tokens)
        clock.sleep(0.03)
    rig.close()
    failed = processor.parts.journal.failed if hasattr(processor, "parts") else set()
    return module.main_process_metrics.samples(), failed


@pytest.mark.parametrize(("channel", "labels"), [("plain", "none"), ("spec_topk", "none"), ("spec", "one")])
def test_every_sample_is_fastdeploys(module, channel, labels, monkeypatch):
    by_name(module, LABELS[labels])
    expected, _ = told(module, module.TokenProcessor, channel, monkeypatch)
    module.main_process_metrics = make_manager(LABELS[labels])
    actual, complaints = told(module, make_class(module), channel, monkeypatch)
    assert complaints == set()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name] == pytest.approx(value), name
    assert [name for name in expected if name[0] == "request_token_ratio_count"]
