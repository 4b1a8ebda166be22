"""Measure everything; rewrite results.json, and tables and picture of RESULTS.md and of both READMEs.

    python -m benchmarks.make_results              measures (some minutes), then writes
    python -m benchmarks.make_results --from FILE  writes what `python -m benchmarks --json FILE` measured
    python -m benchmarks.make_results --redraw     writes picture and READMEs anew, from the stored results

The READMEs' table of the real service is that of harness/service/service.json.
Close other programs first.  Text outside the markers ``<!-- bench:NAME -->`` ... ``<!-- /bench -->`` stays.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from benchmarks import charts, pages, report, runner
from benchmarks.processors import OURS, REAL, RESTATED
from benchmarks.receive import BASELINE as GET_OP
from benchmarks.save import BASELINE as SAVE_OP
from benchmarks.save import PADDLE
from fd_postproc.cli.terminal import note

HERE = Path(__file__).parent
PICTURE, EVERYTHING = HERE / "plots" / "engine.png", HERE / "results.json"
SERVICE = HERE.parent / "harness" / "service" / "service.json"
READMES = (HERE.parent / "README.md", HERE.parent / "README_CN.md")


def blocks(found):
    """Text for each marker of RESULTS.md: a table for each question, the machine."""
    made = {
        question: report.table(question, compared) for question, compared in report.by_question(found).items()
    }
    return {**made, "machine": machine(found)}


NARROW = ("spec_topk b256 a2 c1", "`spec_topk`, 1 column")
WIDE = ("spec_topk b256 a2 c21", "`spec_topk`, 21 columns")
TOPK = ("topk b256 c21", "`topk`, 21 columns")
SPEC, PLAIN = ("spec b256 a2", "`spec`"), ("plain b256", "`plain`")
ENGINE = ("engine process", "engine", (REAL, RESTATED), OURS)
RECEIVE = ("message to `Step`", "receive", (GET_OP,), OURS)
SAVE = ("save op, NumPy arrays", "save", (SAVE_OP,), OURS)
SAVE_PADDLE = ("save op, Paddle's tensors", "save", (SAVE_OP,), PADDLE)
FOR_READERS = (  # what is measured, on which case; ours is not the faster one in all of them
    *((ENGINE, case, "") for case in (WIDE, NARROW, PLAIN)),
    *((RECEIVE, case, ", compact") for case in (WIDE, NARROW, TOPK)),
    *((RECEIVE, case, ", packed") for case in (SPEC, PLAIN)),
    *((SAVE_PADDLE, case, "") for case in (WIDE, NARROW)),
    *((SAVE, case, "") for case in (WIDE, NARROW, TOPK, SPEC, PLAIN)),
)


def times(ratio):
    """A ratio with two digits, or as a whole number."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:#.2g}".rstrip(".")


def times_as_fast(stock, ours):
    """How many times; "noisy" if a spread is too wide for it."""
    if report.noisy(stock, ours):
        return report.NOISY
    return times(stock.median / ours.median)


def for_readers(found):
    """README's table: medians, and how many times as fast.  FastDeploy's own class where it was measured."""
    results = report.earlier(found)
    lines = [
        "| one step of 256 requests | FastDeploy | fd_postproc | times as fast |",
        "|---|---:|---:|---:|",
    ]
    for (what, question, theirs, name), (case, label), dialect in FOR_READERS:
        stocks = {one: results.get((question, case + dialect, one)) for one in theirs}
        by = next((one for one, stock in stocks.items() if stock), None)
        ours = results.get((question, case + dialect, name))
        if ours and by:
            cells = (
                f"{what}: {label}",
                f"{report.seconds(stocks[by].median)}{', restated' * (by != REAL)}",
                report.seconds(ours.median),
                times_as_fast(stocks[by], ours),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def paces(rows):
    """README's table of the real service: a worker that never waits, and one that has a step each 100 ms.

    Parameters
    ----------
    rows : list of dict
        Of harness/service/service.json.
    """
    costs = {
        (row["requests"], row["kind"], row["interval"], row["plug-in"]): row["engine ms"] for row in rows
    }
    lines = [
        "| 256 requests: the engine's CPU of a step | FastDeploy | fd_postproc | times as fast |",
        "|---|---:|---:|---:|",
    ]
    for kind, label in (("21 columns", "21 columns"), ("plain", "no log-probabilities")):
        for interval, pace in ((0.1, "a step each 100 ms"), (0.0, "a worker that never waits")):
            stock, ours = (1e-3 * costs[256, kind, interval, plug_in] for plug_in in (False, True))
            cells = report.seconds(stock), report.seconds(ours), times(stock / ours)
            lines.append(f"| {label}, {pace} | {' | '.join(cells)} |")
    return "\n".join(lines)


SCALES = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "%": 1e-2}


def number(text):
    """A cell of a table as a number: times in seconds, shares of one; None if it is empty."""
    if text in ("", "none", report.NOISY):
        return 0 if text == "none" else None
    value, _, unit = text.removesuffix("x").replace(",", "").partition(" ")
    return float(f"{float(value) * SCALES[unit]:.3g}") if unit else json.loads(value)


def everything(found):
    """Every row of every question, for results.json: what the tables show, as numbers."""
    questions = {}
    for question, compared in report.by_question(found).items():
        shown = report.columns(question)
        rows = [
            [one.case, name, *(number(column.cell(result, one)) for column in shown)]
            for one in compared
            for name, result in one.results.items()
        ]
        questions[question] = {
            "columns": ["case", "contender", *(column.heading for column in shown)],
            "rows": rows,
        }
    return {"machine": machine(found), "questions": questions}


def recorded(path):
    """What results.json has, as far as picture and READMEs show it: medians, spreads, fastest timings."""
    found = []
    for question, table in json.loads(path.read_text())["questions"].items():
        cases = {}
        for row in table["rows"]:
            cell = dict(zip(table["columns"], row, strict=True))
            one = types.SimpleNamespace(**{name: cell[name] for name in ("median", "spread", "best")})
            cases.setdefault(cell["case"], {})[cell["contender"]] = one
        found += [(question, runner.Compared(case, results)) for case, results in cases.items()]
    return found


def machine(found):
    """What pyperf noted, in a sentence."""
    first = next(iter(found[0][1].results.values()))
    facts, dates = first.facts, first.benchmark.get_dates()
    day = f"; {dates[0]:%F}" if dates else ""
    load = report.load_average(found)
    python = f"{facts.get('python_version', '?')}, {facts.get('python_compiler', platform.python_compiler())}"
    return (
        f"{facts.get('cpu_model_name', platform.processor())}, {facts.get('cpu_count')} cores; "
        f"{facts.get('platform')}; Python {python}{day}.{'  ' * bool(load)}{load}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="timings that exist already")
    parser.add_argument("--redraw", action="store_true", help="only what is made from stored results")
    options = parser.parse_args()
    try:  # what is missing is better known before measuring than after it
        for package in ("matplotlib", *(() if options.redraw else ("pyperf",))):
            runner.require(package)
    except ModuleNotFoundError as error:
        parser.error(str(error))
    source, folder = options.source, None
    if source is not None and not source.exists():
        parser.error(f"--from {source}: no such file; python -m benchmarks --json FILE makes one")
    if source is None and not options.redraw:
        folder = tempfile.mkdtemp(prefix="fd_postproc-timings-")
        source = Path(folder, "timings.json")
        command = [sys.executable, "-m", "benchmarks", "--json", os.fspath(source)]
        note(f"make_results: measuring; after a failure, --from {source} writes what was measured")
        status = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.DEVNULL).returncode
        if status:
            sys.exit(status)
    if source is not None:
        found = runner.load(source)
        pages.write_json(everything(found), EVERYTHING)
        pages.fill(HERE / "RESULTS.md", "bench", blocks(found))
    found = recorded(EVERYTHING)
    charts.draw(found, PICTURE)
    texts = {"speed": for_readers(found), "pace": paces(json.loads(SERVICE.read_text()))}
    for page in READMES:
        pages.fill(page, "bench", texts)
    if folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
