"""Comparisons of timings, on timings that were made up; instruction counts."""

import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from benchmarks import __main__ as command_line
from benchmarks import (
    charts,
    instructions,
    make_results,
    report,
    runner,
    save,
)
from benchmarks.receive import BASELINE as GET_OP
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


@each("row", make_results.FOR_READERS)
def test_readmes_table_names_what_is_measured(row):
    (_, question, theirs, ours), (case, _), dialect = row
    found = [one for _, one in runner.plan((question,)) if one.case == case + dialect]
    assert {theirs[-1], ours} <= set(found[0].contenders) | {save.PADDLE}


def test_readmes_table_chooses_no_case_by_its_outcome():
    """The same rows in the same order whatever is faster; those in which FastDeploy's way wins stay."""
    stored = make_results.recorded(make_results.EVERYTHING)
    turned = [
        (
            question,
            runner.Compared(one.case, dict(zip(one.results, [*one.results.values()][::-1], strict=True))),
        )
        for question, one in stored
    ]
    tables = [make_results.for_readers(found).splitlines() for found in (stored, turned)]
    heads = [[line.split("|")[1] for line in table] for table in tables]
    assert heads[0] == heads[1]
    assert len(heads[0]) == 2 + len(make_results.FOR_READERS)
    assert any(float(line.split("|")[4]) < 1 for line in tables[0][2:])


def test_readmes_table_has_fastdeploys_own_class_where_it_ran():
    times = {"FastDeploy": 17e-3, "FastDeploy restated": 18e-3, "fd_postproc": 0.3e-3}
    with_it = make_results.for_readers([compared("engine", make_results.NARROW[0], times)])
    assert with_it.endswith("engine process: `spec_topk`, 1 column | 17.0 ms | 300 us | 57 |")
    del times["FastDeploy"]
    without = make_results.for_readers([compared("engine", make_results.NARROW[0], times)])
    assert without.endswith("| 18.0 ms, restated | 300 us | 60 |")


@each("page", make_results.READMES)
def test_readmes_are_as_the_stored_results_say(page):
    """Both tables, and the range of the second one in the first paragraph."""
    speed = make_results.for_readers(make_results.recorded(make_results.EVERYTHING))
    pace = make_results.paces(json.loads(make_results.SERVICE.read_text()))
    text = page.read_text()
    assert speed in text
    assert pace in text
    factors = [line.split("|")[4].strip() for line in pace.splitlines()[2:]]
    least, most = min(factors, key=float), max(factors, key=float)
    assert re.search(rf"\[{least} (to|到) {most} (times|倍)\]", text)


def test_both_paces_stand_side_by_side():
    costs = {False: 80.0, True: 2.0}
    rows = [
        {"requests": 256, "kind": kind, "interval": interval, "plug-in": on, "engine ms": ms + 100 * interval}
        for kind in ("plain", "21 columns")
        for interval in (0.0, 0.1)
        for on, ms in costs.items()
    ]
    cells = [line.split(" | ")[1:] for line in make_results.paces(rows).splitlines()[2:]]
    assert cells == 2 * [["90.0 ms", "12.0 ms", "7.5 |"], ["80.0 ms", "2.00 ms", "40 |"]]


NOISE = compared("save", "plain b1", {"fd_postproc": 1e-6, save.BASELINE: 5e-7, "floor": 4e-7})
NOISE[1].results["fd_postproc"] = result("save/plain b1/fd_postproc", [[1e-6, 9e-6], [1e-6, 4e-5]])


def test_no_ratio_of_noise():
    """Neither beside another contender, nor beside an earlier run; and results.json has no such number."""
    text = report.report([NOISE], [NOISE])
    rows = {line.split("|")[2].strip(" *"): line for line in text.splitlines() if line.startswith("|")}
    assert rows["fd_postproc"].count("noisy") == 3
    assert "1.25x" in rows["floor"]
    assert "above 30 %" in text
    assert "noisy" not in report.report([STEP])
    table = make_results.everything([NOISE])["questions"]["save"]
    assert table["rows"][0][table["columns"].index("speed-up")] is None
    stock, ours = (NOISE[1].results[name] for name in (save.BASELINE, report.OURS))
    assert make_results.times_as_fast(stock, ours) == "noisy"


def test_the_load_is_printed():
    busy = compared("step", "x", {"fd_postproc": 1.0, "floor": 1.0}, load_avg_1min=30.1)
    assert "Load average while measuring: 30.1 to 30.1." in report.report([busy])


def test_columns_stand_under_each_other_and_who_did_not_run_is_named():
    question, one = compared("receive", "plain b256, packed", {"fd_postproc": 1e-6, GET_OP: 1e-6})
    one.missing |= {"floor": "no reason", "sysv_ipc + decode": "no reason"}
    head, rule, *lines, _, last = report.table(question, [one], aligned=True).splitlines()
    assert len({*map(len, (head, rule, *lines))}) == 1
    assert last == "* plain b256, packed: floor, sysv_ipc + decode: not run: no reason"
    page = report.table(question, [one])
    assert page.startswith("| case | contender | median | spread | best | speed-up |\n|---|---|---:|")


def test_what_is_missing_is_known_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(make_results, "subprocess", None)
    monkeypatch.setattr("sys.argv", ["make_results"])
    with pytest.raises(SystemExit) as ended:
        make_results.main()
    assert ended.value.code == 2
    assert "pip install" in capsys.readouterr().err


def test_timings_survive_a_failure_after_them(monkeypatch, tmp_path, capsys):
    """They are where stderr says; a run that succeeds leaves nothing behind."""

    def measured(command, **_):
        runner.save([STEP], command[command.index("--json") + 1])
        return mock.Mock(returncode=0)

    for name in ("EVERYTHING", "PICTURE"):
        monkeypatch.setattr(make_results, name, tmp_path / name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(make_results, "subprocess", mock.Mock(run=measured))
    monkeypatch.setattr(make_results.pages, "fill", lambda *_: None)
    monkeypatch.setattr(runner, "require", lambda package: None)
    monkeypatch.setattr(charts, "draw", lambda *_: 1 / 0)
    monkeypatch.setattr("sys.argv", ["make_results"])
    with pytest.raises(ZeroDivisionError):
        make_results.main()
    file = Path(re.search(r"--from (\S+)", capsys.readouterr().err)[1])
    assert [question for question, _ in runner.load(file)] == ["step"]
    monkeypatch.setattr(charts, "draw", lambda *_: None)
    make_results.main()
    assert len(list(tmp_path.glob("*timings*"))) == 1


def test_progress_is_seen_in_a_log(monkeypatch, capsys):
    todo = runner.plan(("save",))
    monkeypatch.setattr(runner, "measure", lambda *_: iter([NOISE, NOISE]))
    command_line._measure(todo, runner.QUICK, [])
    assert f"benchmarks: 2 of {len(todo)}: save: plain b1" in capsys.readouterr().err


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
