"""What the token thread tells about itself: totals, a line in the log, Prometheus counters."""

import itertools
import logging
import math
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from fd_postproc.fastdeploy.engine.results._results import Stages
from fd_postproc.fastdeploy.events.totals import EXPORT_S, RECEIVED, Counters, Reports
from fd_postproc.ops.log_throttle import Complaints
from tests.lib.rows import each


def reports_of(totals):
    log = logging.getLogger("test")
    return Reports(totals, log, Complaints(log.error))


def test_each_stage_has_its_time():
    totals, began = Stages(), time.monotonic()
    totals.begin()
    time.sleep(0.02)
    totals.end_receive()
    time.sleep(0.04)
    totals.end_build(None)
    time.sleep(0.06)
    totals.end_put([None], None)
    found = [totals.receive_seconds, totals.build_seconds, totals.put_seconds]
    assert [found[0] >= 0.02, found[1] >= 0.04, found[2] >= 0.06] == [True] * 3, found
    assert sum(found) <= time.monotonic() - began + 1e-3
    assert began < totals.clock <= time.monotonic() + 1e-3


def test_the_time_of_a_draft_message_is_not_that_of_the_next_step(rig_of):
    rig, stages = rig_of("spec_topk", ["a"], enable_draft_logprob=True), mock.Mock()
    rig.processor.parts.steps.process(rig.message({0: [5]}, flag=4), stages)
    assert [name for name, *_ in stages.method_calls] == ["end_receive", "begin"]


def test_waiting_for_a_queue_that_is_gone_is_not_forgotten():
    totals = Counters(Stages())
    for waited in (3.0, 4.0):
        stats = dict.fromkeys(RECEIVED, int(waited)) | {"wait_seconds": waited}
        totals.follow(SimpleNamespace(stats=stats))
        assert totals.as_dict()["wait_seconds"] == totals.wait_seconds
    assert totals.wait_seconds == 7.0
    assert totals.as_dict()["incomplete"] == totals.as_dict()["corrupt"] == 7


def test_frames_that_never_become_whole_are_exported_and_logged(caplog):
    totals = Counters(Stages())
    reports = reports_of(totals)
    totals.follow(SimpleNamespace(stats=dict.fromkeys(RECEIVED, 0), msqid=7, channel="spec"))
    for incomplete in range(0, 300, 3):
        totals.receiver.stats["incomplete"] = incomplete
        reports.refresh(1.0 + incomplete)
    assert totals.as_dict()["incomplete"] == 297
    assert caplog.text.count("queue msqid:7 (spec): a frame in pieces was never completed") == 1


@each("trouble", ["missing", "doubled", "reordered"])
def test_what_happens_to_frames_is_logged_with_its_sender(caplog, trouble):
    caplog.clear()
    totals = Counters(Stages())
    reports = reports_of(totals)
    one = {"frames": 1200, "next": 1203, "missing": 0, "doubled": 0, "reordered": 0, trouble: 3}
    quiet = dict.fromkeys(one, 0)
    totals.follow(
        SimpleNamespace(
            stats=dict.fromkeys(RECEIVED, 0), msqid=7, channel="spec", senders={255: one, 254: quiet}
        )
    )
    reports.refresh(1.0)
    assert caplog.text == ""
    totals.receiver.stats[trouble] = 3
    told, reports._complaints.tell = reports._complaints.tell, mock.Mock()
    reports._complaints.tell.side_effect = told
    for now in 10.0, 11.0:
        reports.refresh(now)
    ((_, _, count),) = [call.args for call in reports._complaints.tell.call_args_list]
    assert count == 3
    assert totals.as_dict()[trouble] == 3
    whose = "(3 of sender 00000000000000ff, from which 1,200 came and number 1,203 is due)"
    assert caplog.text.count("queue msqid:7 (spec): frames") == caplog.text.count(whose) == 1
    assert "0 of sender" not in caplog.text


def test_exported_counters_follow_once_in_a_period():
    prometheus = pytest.importorskip("prometheus_client")
    totals = Counters(Stages())
    reports = reports_of(totals)
    reports.refresh(100.0)
    before = prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total")
    for _ in range(3):
        totals.stages.end_put([None], None)
    reports.refresh(101.0)
    assert prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total") == before  # not yet
    reports.refresh(100.0 + EXPORT_S)
    assert prometheus.REGISTRY.get_sample_value("fd_postproc_steps_total") == before + 3


def test_the_log_gets_a_line_when_it_is_time(monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_LOG_STATS", "60")
    caplog.set_level(logging.INFO, "test")
    reports, now = reports_of(Counters(Stages())), time.monotonic()
    reports.refresh(now)
    assert caplog.messages == []
    reports.refresh(now + 60)
    assert len(caplog.messages) == 1
    assert "0 steps" in caplog.messages[0]


def test_counters_that_cannot_be_made_are_left_out(monkeypatch):
    prometheus = pytest.importorskip("prometheus_client")
    monkeypatch.setattr("fd_postproc.fastdeploy.events.counters._made", {})
    duplicated = itertools.repeat(ValueError("Duplicated timeseries"))
    made = itertools.chain([mock.Mock(), mock.Mock()], duplicated)
    monkeypatch.setattr(prometheus, "Counter", mock.Mock(side_effect=made))
    reports_of(Counters(Stages())).refresh(1.0)


@each("text", ["often", "0", "-1", "nan"])
def test_a_bad_period_is_logged_and_does_no_harm(text, monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_LOG_STATS", text)
    reports = reports_of(Counters(Stages()))
    assert f"FD_POSTPROC_LOG_STATS={text!r}" in caplog.text
    assert reports._log_period == math.inf
