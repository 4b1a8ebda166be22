"""Tables, pictures and comparisons of timings, on timings that were made up."""

import importlib.util
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import (
    cases,
    charts,
    fit,
    instructions,
    processors,
    report,
    runner,
    targets,
)
from tests.lib.paths import ROOT
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


def printed(tables):
    screen = Console(file=io.StringIO(), width=250)
    screen.print(*tables)
    return screen.file.getvalue()


STEP = compared(
    "step", "spec_topk b256 a2 c1", {"FastDeploy restated": 18e-3, "fd_postproc": 0.3e-3, "floor": 0.2e-3}
)


def test_tables_show_speed_up_and_floor():
    text = printed(report.report([STEP]))
    assert "60.0x" in text
    assert "1.50" in text
    assert "| **fd_postproc** | 300 us" in report.markdown("step", [STEP[1]])


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


@each("content", ["{}", "nonsense", json.dumps({"version": "1.0", "benchmarks": []})])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "timings.json").write_text(content)
    with pytest.raises(ValueError, match="holds no timings"):
        runner.load(tmp_path / "timings.json")


@each("case", list(processors.cases(quick=False)))
def test_labels_are_read_back(case):
    assert cases.Case.parse(str(case)) == case


@each("label", ["", "spec_topk b1", "plain b1 a1", "slots: 1 request, a2 c21", "topk b2 a1 c3"])
def test_other_labels_are_no_cases(label):
    assert cases.Case.parse(label) is None


def test_targets_are_judged():
    text = targets.markdown([STEP])
    assert text.splitlines()[-1] == (
        "| results, 1 column | 18.0 ms | 300 us | 300 us | 60.0 | 1.50 | 350 us, 40 times as fast | yes |"
    )
    slow = compared("step", STEP[1].case, {"FastDeploy restated": 9e-3, "fd_postproc": 0.3e-3, "floor": 1e-4})
    assert targets.markdown([slow]).splitlines()[-1].endswith("| no |")


@each("target", targets.TARGETS)
def test_targets_name_what_is_measured(target):
    for quick in (True, False):
        found = [one for _, one in runner.plan((target.question,), quick) if one.case == target.case]
        assert {target.ours, target.stock, "floor"} <= set(found[0].contenders)


# ---- What is missing ----------------------------------------------------------------------------------


def test_without_fastdeploy_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(processors, "DOUBLE", Path("nowhere"))
    monkeypatch.delenv("FD_POSTPROC_FASTDEPLOY", raising=False)
    with pytest.raises(
        cases.Unavailable, match="set FD_POSTPROC_FASTDEPLOY to its source tree; the double of it"
    ):
        processors.token_processor_module()
    (tmp_path / "fastdeploy").mkdir()
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", str(tmp_path))
    assert processors._folder() == tmp_path
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", str(tmp_path / "fastdeploy"))
    assert processors._folder() == tmp_path
    assert processors.names()[0] == "FastDeploy"


# ---- Pictures -------------------------------------------------------------------------------------------


def parts():
    """Timings of the picture: the parts of a step, and the whole of one."""
    ways = ("FastDeploy restated", "fd_postproc", "floor")
    times = dict.fromkeys((f"{name}: {part}" for name in ways for part in charts.engine.PARTS), 1e-3)
    less = {f"FastDeploy restated: results, less {part}": 1e-4 for part in charts.engine.STEP_PARTS}
    return compared("engine", "spec_topk b256 a2 c1, parts", times | less)


def test_the_picture_is_drawn_twice(tmp_path):
    pytest.importorskip("matplotlib")
    (path,) = charts.draw([STEP, parts()], tmp_path / "pictures")
    assert path.name == "waterfall.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in path.with_suffix(".svg").read_text()


def test_the_line_is_found():
    exact = fit.line([1, 10, 100], [3.0, 21.0, 201.0])
    assert (exact.start, exact.slope, exact.r2) == (pytest.approx(1), pytest.approx(2), pytest.approx(1))
    assert exact.worst == pytest.approx(0, abs=1e-9)
    bent = fit.line([1, 10, 100], [3.0, 21.0, 401.0])
    assert bent.r2 < 0.99
    assert bent.worst > 0.1


def test_parts_of_a_step_add_up():
    _, one = parts()
    stock, ours = charts.parts(one, "FastDeploy restated"), charts.parts(one, "fd_postproc")
    assert set(stock) - set(ours) == set(charts.engine.STEP_PARTS)
    assert stock["results"] == pytest.approx(1e-4)
    assert stock["text of every result"] == pytest.approx(9e-4, rel=0.02)
    assert sum(ours.values()) == pytest.approx(5e-3)
    assert charts.parts(one, "floor")["scheduler's texts"] == 0


# ---- Instruction counts ------------------------------------------------------------------------------------


def test_instruction_counts_are_compared():
    known = {"counts": {"decode": 1000, "gone": 5}}
    assert instructions.compare(known, {"decode": 1020, "gone": 5}, 0.03) == []
    assert instructions.compare(known, {"decode": 1100, "new": 5}, 0.03) == [
        "decode: 1,100 instructions, +10.0 % of 1,000",
        "gone: only in the file",
        "new: only counted now",
    ]


def test_instruction_counts_over_rows_are_lines():
    counts = {f"encode spec_topk b256 a{a} c21, compact": 1000 + 10 * 256 * a for a in (1, 2, 4, 6)}
    counts |= {"decode spec_topk b256 a2 c21": 7, "encode spec_topk b256 a2 c1, compact": 7}
    found = instructions.lines(counts)
    assert list(found) == ["encode"]
    assert (found["encode"].start, found["encode"].slope) == (pytest.approx(1000), pytest.approx(10))
    assert "| encode | 1,000 | 10 | 1.00000 | 0.0 % |" in instructions.markdown(counts)


def test_counts_of_another_python_are_not_compared(tmp_path, capsys):
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"made_with": {**instructions.made_with(), "python": "2.7"}, "counts": {}}))
    assert instructions.main(["check", str(file)]) == 0
    assert "not checked" in capsys.readouterr().out


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


# ---- The command, the pages -------------------------------------------------------------------------


def run_command(*arguments):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_command_compares_and_draws(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    runner.save([compared("step", "x", {"fd_postproc": 1.0}, python_version="2.7")], tmp_path / "before.json")
    now = [parts(), compared("step", "x", {"fd_postproc": 2.0}, python_version="3.11.7")]
    monkeypatch.setattr(runner, "measure", lambda todo, effort, tick: iter(now))
    code = run_command("--compare", str(tmp_path / "before.json"), "--plot", str(tmp_path / "pictures"))
    told = capsys.readouterr()
    assert code == 0
    assert "/ before" in told.out
    assert "waterfall.png" in told.err


def make_results():
    path = ROOT / "benchmarks" / "make_results.py"
    spec = importlib.util.spec_from_file_location("make_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_filled_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- bench:step -->\nold\n<!-- /bench -->\nafter\n<!-- bench:gc -->\nkept\n<!-- /bench -->\n"
    )
    module = make_results()
    module.fill(page, module.blocks([STEP]))
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:step -->\n\n| case |")
    assert "\n\n<!-- /bench -->\nafter\n" in text
    assert "kept" in text
    assert "old" not in text


def test_the_json_has_every_row_and_the_page_those_of_a_quick_run(tmp_path):
    module = make_results()
    other = compared("step", "spec_topk b1 a2 c21", {"FastDeploy restated": 1e-3, "fd_postproc": 1e-4})
    assert [one.case for _, one in module.main_rows([STEP, other])] == [STEP[1].case]
    module.write_json(module.everything([STEP, other]), tmp_path / "results.json")
    told = json.loads((tmp_path / "results.json").read_text())["questions"]["step"]
    assert len(told["rows"]) == 5
    row = dict(zip(told["columns"], told["rows"][1], strict=True))
    assert (row["case"], row["contender"], row["median"], row["speed-up"]) == (
        "spec_topk b256 a2 c1",
        "fd_postproc",
        0.0003,
        pytest.approx(60, abs=0.5),
    )
