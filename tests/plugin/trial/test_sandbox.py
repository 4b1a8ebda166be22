"""The plug-in's check of itself touches nothing outside its sandbox."""

import os
import sys
import threading
import types

import pytest

from fd_postproc.fastdeploy.quiet import SILENT
from tests.lib.other_classes import same
from tests.lib.quiet import imported
from tools.accept.classes import compare
from tools.accept.private_metrics import PrivateMetrics, private_copy
from tools.accept.sandbox import Sandbox

pytestmark = pytest.mark.framework


# ---- Nothing outside is touched -----------------------------------------------------------------------


def samples():
    return imported("fastdeploy.metrics.metrics").get_filtered_metrics()


def test_nothing_of_the_real_module_registry_or_environment_changes(real):
    from prometheus_client import REGISTRY

    compare(real, same)  # Paddle imports some of NumPy when it is first used
    before = dict(vars(real)), dict(vars(real.TokenProcessor)), dict(os.environ), samples()
    collectors, threads = set(REGISTRY._collector_to_names), threading.active_count()
    modules = set(sys.modules)
    assert compare(real, same).compatible
    after = dict(vars(real)), dict(vars(real.TokenProcessor)), dict(os.environ), samples()
    assert all(left.keys() == right.keys() for left, right in zip(before[:3], after[:3], strict=True))
    assert all(after[i][key] is value for i in (0, 1) for key, value in before[i].items())
    assert before[2:] == after[2:]
    assert set(REGISTRY._collector_to_names) == collectors
    assert threading.active_count() == threads
    assert set(sys.modules) == modules


def test_other_threads_see_the_real_names_during_the_check(real):
    names = ("main_process_metrics", "trace_print", "llm_logger", "time", "envs")
    wanted = [getattr(real, name) for name in names]
    seen, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            seen.add(all(getattr(real, name) is value for name, value in zip(names, wanted, strict=True)))
            done.wait(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    compare(real, same)
    done.set()
    watcher.join()
    assert seen == {True}


# ---- The sandbox --------------------------------------------------------------------------------------


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
    imported("fastdeploy.metrics.metrics")
    from prometheus_client import CollectorRegistry, Counter

    counter = Counter("trial_of_labels", "A test's.", ["model"], registry=CollectorRegistry())
    copied = private_copy(counter)
    copied.labels("m").inc(2)
    assert copied.labels("m").value == 2
    assert "trial_of_labels" not in samples()
