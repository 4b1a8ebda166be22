"""The plug-in on a FastDeploy whose metrics are updated by name (its pull request #7865)."""

import time
from types import SimpleNamespace

import pytest

from tests.lib.fakes import Clock
from tests.lib.plugged import new_class
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework

STEPS = (  # tokens by slot; 2 ends a request
    {0: [3], 1: [3], 2: [3]},
    {0: [4], 1: [4], 2: [4]},
    {0: [5], 1: [2], 2: [5]},
    {0: [6], 2: [6]},
)


class ByName(SimpleNamespace):
    """FastDeploy's metrics then, on the usual ones; which names were given."""

    def obs_value(self, name, value, labelvalues=None):
        self.names.append(name)
        getattr(self, name).observe(value)


def test_every_sample_is_that_of_metrics_without_names(rig_of, monkeypatch):
    module, seen = imported("fastdeploy.output.token_processor"), []
    metrics, samples = module.main_process_metrics, imported("tests.lib.step_replay.record").Samples
    for named in (False, True):
        clock = Clock()
        monkeypatch.setattr(time, "time", clock.time)
        rig = rig_of("plain", ["a", "b", "c"], cls=new_class())
        told = ByName(**vars(metrics), names=[])
        monkeypatch.setattr(module, "main_process_metrics", told if named else metrics)
        for tokens in STEPS:
            rig.through_tensors(tokens)
            clock.sleep(0.03)
        monkeypatch.undo()
        seen.append(samples().update())
        assert rig.processor.parts.journal.failed == set()
    assert seen[1] == seen[0]
    assert told.names == ["request_token_ratio"]
