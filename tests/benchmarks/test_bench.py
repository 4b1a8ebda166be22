"""The benchmarks check their answers, run, and report; how fast anything is, is not tested here."""

import gc
import os
from unittest import mock

import pytest
import sysv_ipc

from benchmarks import (
    QUESTIONS,
    cases,
    processors,
    receive,
    runner,
    save,
)
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.restated.workload import Load

pyperf = pytest.importorskip("pyperf")

ALL = runner.plan(QUESTIONS)
SHORTEST = runner.Effort(rounds=2, values=2, min_time=1e-4)


@pytest.fixture(autouse=True)
def same_environment():
    """Contenders may set variables: each has a process of its own, but here.

    FastDeploy's metrics need the folder that its import has named for as long as the process lives.
    """
    with mock.patch.dict(os.environ):
        yield
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is not None:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder


@pytest.fixture(autouse=True)
def same_collector():
    """Contenders may change the garbage collector while they run; leave it as it was."""
    was_on = gc.isenabled()
    yield
    assert gc.isenabled() == was_on
    gc.unfreeze()


def make_and_run(comparison):
    for contender in comparison.contenders.values():
        try:
            ready = contender()
        except cases.Unavailable:  # an optional package is not installed
            continue
        try:
            assert ready.run(1) > 0
        finally:
            ready.close()


def test_the_contenders_of_receive_have_the_right_answer_and_run(raised_limits):
    for comparison in receive.comparisons():
        make_and_run(comparison)


@pytest.mark.framework
@pytest.mark.nightly
@each("question, comparison", [pair for pair in ALL if pair[0] != "receive"])
def test_every_other_contender_does(raised_limits, question, comparison):
    metrics = imported("fastdeploy.metrics.metrics").main_process_metrics
    try:
        make_and_run(comparison)
    finally:
        metrics.reset()


def test_wrong_answers_are_not_timed(monkeypatch):
    api = pytest.importorskip("benchmarks.api", exc_type=ImportError)
    comparison = next(iter(api.comparisons()))
    monkeypatch.setattr(api, "check", lambda right, what: cases.check(False, what))
    with pytest.raises(cases.WrongAnswer):
        comparison.contenders["fd_postproc"]()


@pytest.mark.framework
def test_a_plug_in_that_stands_aside_is_not_timed(monkeypatch):
    module = processors.token_processor_module()
    monkeypatch.setattr(
        processors, "Load", lambda module, cls, case: Load(module, module.TokenProcessor, case)
    )
    with pytest.raises(cases.WrongAnswer, match="fell back"):
        processors.loaded(processors.OURS, module, processors.load_case(cases.Case(batch=2)))


def test_measured_in_turn_and_reported(tmp_path, monkeypatch):
    comparison = next(save.comparisons())
    contenders = ["fd_postproc", "floor"]
    few = cases.Comparison(comparison.case, {name: comparison.contenders[name] for name in contenders})
    names, time = [], runner.Server.time
    monkeypatch.setattr(
        runner.Server, "time", lambda server, order: names.append(order["contender"]) or time(server, order)
    )
    found = list(runner.measure([("save", few)], SHORTEST))
    assert len(names) == 2 * len(contenders)
    assert names[: len(contenders)] == contenders != names[len(contenders) :]
    results = found[0][1].results
    assert all(len(result.rounds) == 2 and result.best > 0 for result in results.values())
    assert results["floor"].ratio(results["floor"]) == 1

    runner.save(found, tmp_path / "timings.json")
    suite = pyperf.BenchmarkSuite.load(str(tmp_path / "timings.json"))
    assert sorted(suite.get_benchmark_names()) == sorted(f"save/{few.case}/{name}" for name in contenders)


# ---- Sending ---------------------------------------------------------------------------------------------


def test_another_message_is_not_timed(monkeypatch):
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "7")
    case, other = cases.Case("plain", 3, 1, 1), cases.Case("plain", 4, 1, 1)
    made = []

    def wrong(queue, _):
        made.append(queue)
        return save._floor_of(queue, other, dialect="packed")

    with pytest.raises(cases.WrongAnswer, match="another step was sent"):
        save._make(case, wrong)
    assert os.environ["INFERENCE_MSG_QUEUE_ID"] == "7"
    with pytest.raises(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(made[0].key)
