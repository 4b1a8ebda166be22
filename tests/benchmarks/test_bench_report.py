"""Comparisons of timings, on timings that were made up; instruction counts."""

import pytest

from benchmarks import (
    instructions,
    make_results,
    runner,
)
from tests.lib.rows import each

pyperf = pytest.importorskip("pyperf")


def result(name, rounds, **facts):
    """A contender's timings, one list a round."""
    metadata = {"name": name, "loops": 1, "unit": "second", **facts}
    runs = [pyperf.Run(values, metadata=metadata, collect_metadata=False) for values in rounds]
    return runner.Result(pyperf.Benchmark(runs))


def compared(question, case, times, **facts):
    """A comparison in which every contender took one time."""
    results = {
        name: result(f"{question}/{case}/{name}", [[time, time * 1.01], [time, time]], **facts)
        for name, time in times.items()
    }
    return question, runner.Compared(case, results)


STEP = compared(
    "step", "spec_topk b256 a2 c1", {"FastDeploy restated": 18e-3, "fd_postproc": 0.3e-3, "floor": 0.2e-3}
)


def test_runs_of_another_machine_are_named():
    there = compared("step", "x", {"fd_postproc": 1.0}, python_version="3.10.1")
    here = compared("step", "x", {"fd_postproc": 1.0}, python_version="3.11.7")
    assert runner.differences([there], [here]) == ["python_version (3.10.1, now 3.11.7)"]
    assert runner.differences([there], [there]) == runner.differences([], [here]) == []


def test_timings_come_back_from_a_file(tmp_path):
    other = compared("receive", "plain b1, packed", {"fd_postproc": 1e-6, "floor": 5e-7})
    runner.save([STEP, other], tmp_path / "timings.json")
    found = runner.load(tmp_path / "timings.json")
    assert [(question, one.case, list(one.results)) for question, one in found] == [
        ("step", STEP[1].case, list(STEP[1].results)),
        ("receive", "plain b1, packed", ["fd_postproc", "floor"]),
    ]
    assert found[0][1].results["floor"].rounds == STEP[1].results["floor"].rounds


@each("row", make_results.FOR_OPERATORS)
def test_readmes_table_names_what_is_measured(row):
    _, question, case, by = row
    for quick in (True, False):
        found = [one for _, one in runner.plan((question,), quick) if one.case == case]
        assert {"fd_postproc", by} <= set(found[0].contenders)


def test_readmes_table():
    engine = compared("engine", make_results.NARROW, {"FastDeploy restated": 18e-3, "fd_postproc": 0.3e-3})
    assert make_results.for_operators([engine]).endswith("alone | 18.0 ms | 300 us | 60 |")


def test_the_line_is_found():
    exact = instructions.line([1, 10, 100], [3.0, 21.0, 201.0])
    assert (exact.start, exact.slope, exact.r2) == (pytest.approx(1), pytest.approx(2), pytest.approx(1))
    assert exact.worst == pytest.approx(0, abs=1e-9)
    bent = instructions.line([1, 10, 100], [3.0, 21.0, 401.0])
    assert bent.r2 < 0.99
    assert bent.worst > 0.1


def test_changed_counts_fail(tmp_path, capsys, monkeypatch):
    file = tmp_path / "counts.json"
    monkeypatch.setattr(instructions, "count", lambda: {"decode": 1000})
    assert instructions.main(["count", str(file)]) == 0
    assert instructions.main(["check", str(file)]) == 0
    monkeypatch.setattr(instructions, "count", lambda: {"decode": 1100})
    assert instructions.main(["check", str(file)]) == 1
    assert "+10.0 %" in capsys.readouterr().out


def test_every_counted_call_runs(ops_queue):
    with instructions.calls() as found:
        for call, before in found.values():
            before()
            call()
        assert len(found) > 12
