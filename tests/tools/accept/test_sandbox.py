"""FastDeploy's module in the trial: what acts is replaced, what is data is kept, and all is restored."""

import inspect

import pytest

from tools.accept.private_metrics import PrivateMetrics
from tools.accept.quiet import SILENT
from tools.accept.sandbox import Clock, Sandbox

pytestmark = pytest.mark.framework


def test_the_sandbox_replaces_what_acts_keeps_what_is_data_and_restores(real):
    modules = {
        id(one): one for one in (real, *map(inspect.getmodule, real.TokenProcessor.__mro__[:-1]))
    }.values()
    before = [dict(vars(one)) for one in (*modules, *real.TokenProcessor.__mro__[:-1])]
    with Sandbox(real) as box:
        assert real.llm_logger is SILENT
        assert real.main_process_metrics is box.metrics
        assert real.time is box.clock
        with pytest.raises(RuntimeError, match="another sandbox"):
            Sandbox(real)
        data = ("RequestOutput", "RequestStatus", "MAX_BSZ", "TokenProcessor")
        assert all(vars(real)[name] is before[0][name] for name in data)
    assert [dict(vars(one)) for one in (*modules, *real.TokenProcessor.__mro__[:-1])] == before


def test_the_clock_of_the_sandbox_ends_waits_without_an_end():
    clock = Clock()
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
