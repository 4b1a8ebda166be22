"""The trial's copy of FastDeploy's module: what acts is replaced, what is data is kept."""

import types

import pytest

from fd_postproc.fastdeploy.quiet import SILENT
from tests.lib.quiet import imported
from tools.accept.private_metrics import PrivateMetrics, private_copy
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


def test_the_sandbox_copies_every_kind_of_method(variant):
    source = """
import functools
def doubled(function):
    @functools.wraps(function)
    def call(self):
        return 2 * function(self)
    return call
class Base:
    def who(self): return "base of " + NAME
class TokenProcessor(Base):
    fd = None
    table = {"a": 1}
    def who(self): return super().who()
    @staticmethod
    def fixed(): return NAME
    @classmethod
    def named(cls): return cls.__name__ + NAME
    @property
    def shown(self): return NAME
    @doubled
    def twice(self): return NAME
    def default(self, a=1, *, b=NAME if "NAME" in globals() else None): return a
NAME = "real"
main_process_metrics = None
"""
    module = types.ModuleType("kinds_of_methods")
    exec(source, vars(module))
    module.TokenProcessor.fd = module
    box = Sandbox(module)
    box.module.NAME = "private"
    cls = box.module.TokenProcessor
    one = cls()
    assert (one.who(), one.fixed(), one.named()) == ("base of private", "private", "TokenProcessorprivate")
    assert (one.shown, one.twice(), one.default()) == ("private", "privateprivate", 1)
    assert one.fd is box.module
    cls.table["a"] = 2
    assert module.TokenProcessor.table == {"a": 1}
    assert module.TokenProcessor().who() == "base of real"


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


def test_metrics_with_labels_are_not_made_in_the_shared_file():
    metrics = imported("fastdeploy.metrics.metrics")
    from prometheus_client import CollectorRegistry, Counter

    counter = Counter("trial_of_labels", "A test's.", ["model"], registry=CollectorRegistry())
    copied = private_copy(counter)
    copied.labels("m").inc(2)
    assert copied.labels("m").value == 2
    assert "trial_of_labels" not in metrics.get_filtered_metrics()
