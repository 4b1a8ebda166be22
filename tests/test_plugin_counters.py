"""What the token thread tells about itself: totals, a line in the log, Prometheus counters."""

import logging
import math

import pytest

from fd_postproc.fastdeploy.engine import counters as counters_module
from fd_postproc.fastdeploy.engine.counters import Counters, Reports


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(counters_module.time, "monotonic", lambda: now[0])
    return now


def test_totals_are_summed_over_steps():
    totals = Counters()
    totals.add_step(256, 0.5, 0.25)
    totals.add_step(1, 0.5, 0.25)
    found = totals.as_dict()
    assert (found["steps"], found["results"], found["build_seconds"], found["put_seconds"]) == (
        2,
        257,
        1.0,
        0.5,
    )
    assert found["wait_seconds"] == 0.0  # no receiver yet


def test_a_line_names_every_total():
    line = Counters().line()
    assert "0 lost steps" in line
    assert "0 failed requests" in line
    assert "build 0.000 s" in line


def test_exported_counters_follow_once_in_a_period(clock):
    prometheus = pytest.importorskip("prometheus_client")
    totals = Counters()
    reports = Reports(totals, logging.getLogger("test"))
    reports.refresh()
    before = prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total")
    totals.steps += 3
    reports.refresh()
    assert prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total") == before  # not yet
    clock[0] += counters_module.PERIOD
    reports.refresh()
    assert prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total") == before + 3


def test_the_log_gets_a_line_when_it_is_time(clock, monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_LOG_STATS", "60")
    logger = logging.getLogger("test")
    caplog.set_level(logging.INFO, "test")
    reports = Reports(Counters(), logger)
    reports.refresh()
    assert caplog.messages == []
    clock[0] += 60
    reports.refresh()
    assert len(caplog.messages) == 1
    assert "0 steps" in caplog.messages[0]


@pytest.mark.parametrize("text", ["often", "0", "-1", "nan"])
def test_a_bad_period_is_logged_and_does_no_harm(text, monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_LOG_STATS", text)
    reports = Reports(Counters(), logging.getLogger("test"))
    assert f"FD_POSTPROC_LOG_STATS={text!r}" in caplog.text
    assert reports._log_period == math.inf
