"""Tables, pictures and comparisons of timings, on timings that were made up."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import (
    cases,
    charts,
    endtoend,
    fit,
    instructions,
    pickling,
    processors,
    report,
    runner,
    targets,
    unused,
)
from fd_postproc.layout import GPU, Layout
from tests.lib.paths import ROOT

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


def test_percentiles_are_of_single_timings():
    one = result("gc/x/y", [[i / 1000 for i in range(1, 1001)]])
    assert one.percentile(0.99) == 0.99
    assert one.percentile(0.999) == 0.999
    assert one.longest == 1.0


def test_tables_show_speed_up_and_floor():
    text = printed(report.report([STEP]))
    assert "60.0x" in text
    assert "1.50" in text
    assert "| **fd_postproc** | 300 us" in report.markdown("step", [STEP[1]])


def test_tables_show_an_earlier_run():
    now = compared("step", "spec_topk b256 a2 c1", {"fd_postproc": 0.6e-3, "new": 1e-3})
    text = printed(report.report([now], before=[STEP]))
    assert "/ before" in text
    assert "2.00" in text


def test_runs_of_another_machine_are_named():
    there = compared("step", "x", {"fd_postproc": 1.0}, python_version="3.10.1")
    here = compared("step", "x", {"fd_postproc": 1.0}, python_version="3.11.7")
    assert runner.differences([there], [here]) == ["python_version (3.10.1, now 3.11.7)"]
    assert runner.differences([there], [there]) == runner.differences([], [here]) == []


def test_single_steps_have_their_own_columns():
    values = [1e-3] * 990 + [5e-3] * 10
    one = result("gc/x/fd_postproc", [values], gc_longest=2e-3, gc_total=0.01)
    text = printed(report.report([("gc", runner.Compared("x", {"fd_postproc": one}))]))
    assert "p99.9" in text
    assert "5.00 ms" in text
    assert "2.00 ms" in text
    assert "1.0 %" in text


def test_contenders_that_could_not_run_say_why():
    missing = {"pyzmq ipc, orjson": "needs orjson", "pyzmq ipc, pickle": "needs pyzmq"}
    one = runner.Compared("x", dict(STEP[1].results), missing)
    text = printed(report.report([("endtoend", one)]))
    assert "pyzmq ipc, orjson: not run: needs orjson" in text
    nothing = runner.Compared("x", {}, {"a": "no FastDeploy", "b": "no FastDeploy"})
    assert "not run: no FastDeploy" in printed(report.report([("step", nothing)]))


def test_timings_come_back_from_a_file(tmp_path):
    other = compared("decode", "spec_topk b1 a2 c21", {"fd_postproc": 1e-6, "floor": 5e-7})
    runner.save([STEP, other], tmp_path / "timings.json")
    found = runner.load(tmp_path / "timings.json")
    assert [(question, one.case, list(one.results)) for question, one in found] == [
        ("step", STEP[1].case, list(STEP[1].results)),
        ("decode", "spec_topk b1 a2 c21", ["fd_postproc", "floor"]),
    ]
    assert found[0][1].results["floor"].rounds == STEP[1].results["floor"].rounds


@pytest.mark.parametrize("content", ["{}", "nonsense", json.dumps({"version": "1.0", "benchmarks": []})])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "timings.json").write_text(content)
    with pytest.raises(ValueError, match="holds no timings"):
        runner.load(tmp_path / "timings.json")


def test_timings_of_something_else_are_refused(tmp_path):
    runner.save([compared("speed", "x", {"y": 1.0})], tmp_path / "timings.json")
    with pytest.raises(ValueError, match=r"'speed/x/y' is no timing of the benchmarks"):
        runner.load(tmp_path / "timings.json")


@pytest.mark.parametrize("case", cases.matrix(), ids=str)
def test_labels_are_read_back(case):
    assert cases.Case.parse(str(case)) == case


@pytest.mark.parametrize(
    "label", ["", "spec_topk b1", "plain b1 a1", "slots: 1 request, a2 c21", "topk b2 a1 c3"]
)
def test_other_labels_are_no_cases(label):
    assert cases.Case.parse(label) is None


def test_targets_are_judged():
    text = targets.markdown([STEP])
    assert text.splitlines()[-1] == (
        "| results, 1 column | 18.0 ms | 300 us | 300 us | 60.0 | 1.50 | 350 us, 40 times as fast | yes |"
    )
    slow = compared("step", STEP[1].case, {"FastDeploy restated": 9e-3, "fd_postproc": 0.3e-3, "floor": 1e-4})
    assert targets.markdown([slow]).splitlines()[-1].endswith("| no |")


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.what)
def test_targets_name_what_is_measured(target):
    for quick in (True, False):
        found = [one for _, one in runner.plan((target.question,), quick) if one.case == target.case]
        assert {target.ours, target.stock, "floor"} <= set(found[0].contenders)


# ---- What is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "way"),
    [
        ("zmq", "pyzmq ipc, pickle of lists"),
        ("orjson", "pyzmq ipc, orjson"),
        ("msgspec.msgpack", "pyzmq ipc, msgspec"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, raised_limits, module, way):
    monkeypatch.setitem(sys.modules, module, None)
    comparison = next(iter(endtoend.comparisons(False)))
    with pytest.raises(cases.Unavailable, match=r"needs \w+: pip install "):
        comparison.contenders[way]()


def test_a_missing_serialiser_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "orjson", None)
    with pytest.raises(cases.Unavailable, match="needs orjson: pip install orjson"):
        pickling.WAYS["orjson of lists"](cases.Case(batch=1).step())


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


def test_without_matplotlib_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(command.CommandError, match="pip install matplotlib"):
        run_command("--quick", "--plot", str(tmp_path))


# ---- Pictures -------------------------------------------------------------------------------------------


def everything():
    """Timings of every picture's questions."""
    found = []
    ways = {"FastDeploy restated": 100, "fd_postproc": 2, "floor": 1}
    for question in charts.TITLES:
        baseline = {"receive": "FastDeploy's get op restated"}.get(question, "FastDeploy's op restated")
        for case in processors.cases(False):
            rows = case.batch * case.accepted * case.columns
            times = {name: 1e-6 + 1e-7 * rows * factor for name, factor in ways.items()}
            times[baseline] = times["FastDeploy restated"]
            label = f"{case}, compact" if question == "receive" else str(case)
            found.append(compared(question, label, times))
    parts = dict.fromkeys((f"{name}: {part}" for name in ways for part in charts.engine.PARTS), 1e-3)
    less = {f"FastDeploy restated: results, less {part}": 1e-4 for part in charts.engine.STEP_PARTS}
    found.append(compared("engine", "spec_topk b256 a2 c1, parts", parts | less))
    sizes = {f"{rows} rows": 3e-6 + 2e-6 * rows for rows in (256, 512, 1024, 1536)}
    found.append(("linear", runner.Compared("decode", {n: result(n, [[t, t]]) for n, t in sizes.items()})))
    tight = {"tight": 1e-6, "1 of 21": 1.1e-6, "tight, floor": 1e-7, "1 of 21, floor": 2e-7}
    found.append(compared("unused", "columns: b256 a2, 1 column", tight))
    steps = {
        name: result(f"gc/x/{name}", [[1e-3, 2e-3, 3e-3]]) for name in ("fd_postproc", "fd_postproc, frozen")
    }
    return [*found, ("gc", runner.Compared("spec_topk b32 a2 c1", steps))]


@pytest.mark.parametrize(
    "names",
    [
        {"receive", "gc"},
        pytest.param({*charts.TITLES, "linear", "waterfall", "gc"}, marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_every_picture_is_drawn_twice(names, tmp_path):
    pytest.importorskip("matplotlib")
    found = [one for one in everything() if one[0] in names or "waterfall" in names]
    drawn = charts.draw(found, tmp_path / "pictures")
    assert {path.stem for path in drawn} == names
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in path.with_suffix(".svg").read_text()


@pytest.fixture
def figures():
    """Figures of made-up timings, by question."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    drawn = []

    def figure(question, found):
        drawn.append(dict(charts._figures(report.by_question(found)))[question])
        drawn[-1].draw_without_rendering()
        return drawn[-1]

    yield figure
    for one in drawn:
        matplotlib.pyplot.close(one)


def over_batch(question, times):
    """Timings of 1, 32 and 256 requests."""
    batches = (1, 32, 256)
    return [
        compared(question, f"spec_topk b{batch} a2 c21", {n: t[i] for n, t in times.items()})
        for i, batch in enumerate(batches)
    ]


@pytest.mark.parametrize("decades", [0.2, 0.6, 1.5, 2.5, 4])
def test_axes_of_time_have_three_labels_or_more(figures, decades):
    ends = [1.3e-6, 1.4e-6, 1.3e-6 * 10**decades]
    panel = figures("decode", over_batch("decode", {"fd_postproc": ends, "floor": ends})).axes[0]
    low, high = panel.get_ylim()
    shown = [label.get_text() for label in panel.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(shown) >= 3
    assert all(shown)


def title_of_legend(figure):
    return figure.legends[0].get_title().get_text()


def test_points_below_the_floor_are_explained(figures):
    floor = [2e-6, 3e-6, 4e-6]
    above = {"fd_postproc": [3e-6, 4e-6, 5e-6], "floor": floor}
    assert title_of_legend(figures("lists", over_batch("lists", above))) == ""
    below = {"fd_postproc": [3e-6, 4e-6, 3e-6], "floor": floor}
    assert "timings of two processes differ by that (25% at most)" in title_of_legend(
        figures("lists", over_batch("lists", below))
    )
    assert "makes metrics and lists when they are read" in title_of_legend(
        figures("step", over_batch("step", below))
    )


def test_the_line_with_all_lists_read_is_drawn(figures):
    ways = {"fd_postproc": [1e-6] * 3, "fd_postproc, all lists read": [2e-6] * 3, "floor": [3e-6] * 3}
    panel = figures("step", over_batch("step", ways)).axes[0]
    assert [line.get_label() for line in panel.get_lines()] == list(ways)


def test_the_legend_of_lines_covers_no_curve(figures):
    figure = figures("linear", everything())
    below = figure.legends[0].get_window_extent()
    assert all(below.y1 <= panel.get_window_extent().y0 for panel in figure.axes)
    bars = figure.axes[1]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["1 of 21 columns used"]
    assert "1: it costs nothing" in bars.get_xlabel()


def test_layouts_are_compared_with_their_like():
    """decode() knows `GPU` at sight and converts others, so a message in a tight layout would seem slower."""
    layouts = [
        argument
        for comparison in unused.comparisons(False)
        for make in comparison.contenders.values()
        for argument in make.args
        if isinstance(argument, Layout)
    ]
    assert GPU in layouts
    assert not any(layout is GPU for layout in layouts)


def test_too_few_timings_draw_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    assert charts.draw([STEP], tmp_path) == []


def test_the_line_is_found():
    exact = fit.line([1, 10, 100], [3.0, 21.0, 201.0])
    assert (exact.start, exact.slope, exact.r2) == (pytest.approx(1), pytest.approx(2), pytest.approx(1))
    assert exact.worst == pytest.approx(0, abs=1e-9)
    bent = fit.line([1, 10, 100], [3.0, 21.0, 401.0])
    assert bent.r2 < 0.99
    assert bent.worst > 0.1


def test_the_lines_and_what_is_flat_are_said():
    found = [(question, one) for question, one in everything() if question in ("linear", "unused")]
    text = printed(report.report(found))
    assert "decode: 3.00 us + 2.00 us a row; R² 1.0000, largest deviation 0.0 %" in text
    assert "columns: 1 of 21: 1.10 times a tight layout" in text
    assert "* columns: 1 of 21, floor: 2.00 times a tight layout" in report.markdown(
        *found_of("unused", found)
    )


def test_what_counting_costs_is_said():
    _, one = compared("step", "x, counters", {"fd_postproc": 1e-4, "counters and stage times": 1e-6})
    assert "x, counters: 1.00 % of a step" in printed(report.report([("step", one)]))


def found_of(question, found):
    """A question's results, as `report.markdown` takes them."""
    return question, report.by_question(found)[question]


def test_parts_of_a_step_add_up():
    one = next(one for _, one in everything() if one.case.endswith(", parts"))
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


def test_missing_counts_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="instructions count"):
        instructions.main(["check", str(tmp_path / "counts.json")])


def test_without_valgrind_nothing_is_checked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"made_with": instructions.made_with(), "counts": {}}))
    assert instructions.main(["check", str(file)]) == 0
    assert "apt-get install valgrind" in capsys.readouterr().out


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


def test_the_counting_process_prints_its_calls(ops_queue, capsys):
    instructions.run()
    assert "decode spec_topk b256 a2 c21" in capsys.readouterr().out


# ---- The command, the pages -------------------------------------------------------------------------


def run_command(*arguments):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_command_compares_and_draws(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    runner.save([compared("step", "x", {"fd_postproc": 1.0}, python_version="2.7")], tmp_path / "before.json")
    parts = [one for one in everything() if one[0] == "engine"][-1:]
    now = [*parts, compared("step", "x", {"fd_postproc": 2.0}, python_version="3.11.7")]
    monkeypatch.setattr(runner, "measure", lambda todo, effort, tick: iter(now))
    code = run_command("--compare", str(tmp_path / "before.json"), "--plot", str(tmp_path / "pictures"))
    told = capsys.readouterr()
    assert code == 0
    assert "/ before" in told.out
    assert "waterfall.png" in told.err


def test_command_refuses_a_file_of_something_else(tmp_path):
    with pytest.raises(command.CommandError, match="No such file"):
        run_command("--compare", str(tmp_path / "nothing.json"))


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
