"""FastDeploy's sender waits in the scheduler until results are put; nothing else about it changes."""

from types import SimpleNamespace

import pytest

from tests.lib.quiet import Double, imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework
double = Double()
STOCK = 0.001


@pytest.fixture
def wake_up():
    return imported("fd_postproc.fastdeploy.engine.delivery.wake_up")


@pytest.fixture
def scheduler():
    made = double.scheduler__local_scheduler.LocalScheduler()
    made.requests.update({"a": None, "b": None})
    return made


def test_the_wait_is_long_and_given_back_unless_another_one_is_there(scheduler, wake_up):
    one = wake_up.WakeUp(scheduler)
    assert "0.5 s instead of 0.001 s" in one.begin()
    assert scheduler.wait_response_timeout == wake_up.LONGEST_WAIT_S
    assert one.begin() == ""  # again: nothing to do
    for _ in range(2):
        one.end()
        assert scheduler.wait_response_timeout == STOCK
    assert one.begin()
    scheduler.wait_response_timeout = 7.0  # by somebody else
    one.end()
    assert wake_up.WakeUp(scheduler).begin() == ""
    assert scheduler.wait_response_timeout == 7.0


@each("value, kept", [("1", True), ("0", False), ("", False)])
def test_the_environment_may_keep_fastdeploys(value, kept, plan, scheduler, wake_up, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_KEEP_POLLING", value)
    one = wake_up.WakeUp(scheduler)
    one.begin()
    assert (scheduler.wait_response_timeout == STOCK) is kept
    one.end()


def test_which_scheduler_waits(scheduler, wake_up):
    """The one inside a data-parallel scheduler, too; what is none is left alone."""
    assert wake_up.waits_in(SimpleNamespace(_scheduler=scheduler, put_results=None)) is scheduler
    values = {"wait_response_timeout": 1.0}, {"_scheduler": 1}, {}
    for what in (None, object(), *(SimpleNamespace(**value) for value in values)):
        assert wake_up.waits_in(what) is None


# ---- in the engine ---------------------------------------------------------------------------------


def test_a_token_processor_that_runs_has_made_it_long(scheduler, started, log):
    def prepare(rig):
        rig.processor.cached_generated_tokens = scheduler
        assert scheduler.wait_response_timeout == STOCK

    rig = started("topk", prepare=prepare)
    assert scheduler.wait_response_timeout > 100 * STOCK
    assert "results are sent when they are put" in log.text
    rig.processor.stop(60)
    assert scheduler.wait_response_timeout == STOCK


def test_a_scheduler_that_cannot_be_looked_at_does_not_stop_the_start(started, fallbacks):
    class Odd:
        @property
        def wait_response_timeout(self):
            raise RuntimeError("not now")

    before = fallbacks("wake-up")
    rig = started("topk", prepare=lambda rig: setattr(rig.processor, "cached_generated_tokens", Odd()))
    assert rig.processor.worker.is_alive()
    assert fallbacks("wake-up") == before + 1
