"""The trial's copy of FastDeploy's module: what acts is replaced, what is data is kept."""

import types

import pytest

from fd_postproc.fastdeploy.quiet import SILENT
from tools.accept.private_metrics import PrivateMetrics
from tools.accept.sandbox import Sandbox

pytestmark = pytest.mark.framework


def test_the_sandbox_replaces_what_acts_and_keeps_what_is_data(real):
    box = Sandbox(real).module
    assert box.RequestOutput is real.RequestOutput
    assert box.RequestStatus is real.RequestStatus
    assert box.MAX_BSZ == real.MAX_BSZ
    assert box.llm_logger is SILENT
    assert box.TokenProcessor is not real.TokenProcessor
    assert box.main_process_metrics is not real.main_process_metrics
    for cls in box.TokenProcessor.__mro__:
        for value in vars(cls).values():
            if isinstance(value, types.FunctionType):
                assert value.__globals__ is not vars(real)


def test_the_clock_of_the_sandbox_ends_waits_without_an_end(real):
    clock = Sandbox(real).clock
    for _ in range(50):
        clock.sleep(0.005)
    with pytest.raises(RuntimeError, match="never comes"):
        clock.sleep(0.005)


def test_private_metrics_have_the_real_buckets_and_their_own_values(real):
    metrics = PrivateMetrics(real.main_process_metrics)
    theirs, own = real.main_process_metrics.time_per_output_token, metrics.time_per_output_token
    before = [bucket.get() for bucket in theirs._buckets]
    assert type(own) is type(theirs)
    assert own._upper_bounds == theirs._upper_bounds
    own.observe(0.03)
    assert [bucket.get() for bucket in theirs._buckets] == before
    assert metrics.samples()["time_per_output_token"]["_sum"] == 0.03
    metrics.reset()
    assert metrics.samples() == {}
    assert metrics.time_per_output_token is own
    with pytest.raises(AttributeError):
        metrics.no_such_metric  # noqa: B018
