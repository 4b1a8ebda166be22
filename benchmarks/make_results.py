"""Measure everything; rewrite results.json, and tables and picture of RESULTS.md and of both READMEs.

    python -m benchmarks.make_results              measures (a quarter of an hour), then writes
    python -m benchmarks.make_results --from FILE  writes what `python -m benchmarks --json FILE` measured

results.json has every case.  RESULTS.md shows those of ``python -m benchmarks --quick``.
Close other programs first.  Text outside the markers ``<!-- bench:NAME -->`` ... ``<!-- /bench -->`` stays.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from benchmarks import QUESTIONS, charts, instructions, report, runner
from benchmarks.processors import OURS, RESTATED

HERE = Path(__file__).parent
PICTURES, EVERYTHING = HERE / "plots", HERE / "results.json"
MARKED = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def blocks(found):
    """Text for each marker: a table for each question, README's, the machine."""
    made = {
        question: report.markdown(question, compared)
        for question, compared in report.by_question(main_rows(found)).items()
    }
    counts = json.loads((HERE / "instructions.json").read_text())["counts"]
    rest = {
        "speed": for_operators(found),
        "machine": machine(found),
    }
    return {**made, **rest, "instructions": instructions.markdown(counts)}


NARROW, WIDE = "spec_topk b256 a2 c1", "spec_topk b256 a2 c21"
FOR_OPERATORS = (  # what, the question and case that measure it, and the contender that is FastDeploy's way
    ("engine process, with the 20 likeliest tokens", "engine", WIDE, RESTATED),
    ("engine process, with the sampled token's alone", "engine", NARROW, RESTATED),
    (
        "of that: take the message out of the queue",
        "receive",
        f"{WIDE}, compact",
        "FastDeploy's get op restated",
    ),
    ("worker: save the step from CPU tensors", "save", NARROW, "FastDeploy's op restated"),
)


def for_operators(found):
    """README's table: medians, and how many times as fast."""
    results = report.earlier(found)
    lines = ["| one step | FastDeploy | fd_postproc | times as fast |", "|---|---:|---:|---:|"]
    for what, question, case, by in FOR_OPERATORS:
        ours, stock = (results.get((question, case, name)) for name in (OURS, by))
        if ours and stock:
            times = stock.median / ours.median
            fast = f"{times:.1f}" if times < 10 else f"{times:.0f}"
            lines.append(
                f"| {what} | {report.seconds(stock.median)} | {report.seconds(ours.median)} | {fast} |"
            )
    return "\n".join(lines)


def main_rows(found):
    """The comparisons that the page shows: those of a quick run."""
    shown = {(question, one.case) for question, one in runner.plan(QUESTIONS, quick=True)}
    return [(question, one) for question, one in found if (question, one.case) in shown]


SCALES = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "%": 1e-2}


def number(text):
    """A cell of a table as a number: times in seconds, shares of one; None if it is empty."""
    if text in ("", "none"):
        return None if text == "" else 0
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
            "notes": report.notes(question, compared),
        }
    return {"machine": machine(found), "questions": questions}


def recorded(path=EVERYTHING):
    """The medians and fastest timings of question engine in results.json."""
    table = json.loads(path.read_text())["questions"]["engine"]
    cases = {}
    for row in table["rows"]:
        cell = dict(zip(table["columns"], row, strict=True))
        one = types.SimpleNamespace(median=cell["median"], best=cell["best"])
        cases.setdefault(cell["case"], {})[cell["contender"]] = one
    return [("engine", runner.Compared(case, results)) for case, results in cases.items()]


def write_json(content, path=EVERYTHING):
    """A row a line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    innermost = re.compile(r"\[[^][{}]*\]")
    path.write_text(innermost.sub(lambda row: json.dumps(json.loads(row[0])), text) + "\n")


def machine(found):
    """What pyperf noted, in a sentence."""
    first = next(iter(found[0][1].results.values()))
    facts, dates = first.facts, first.benchmark.get_dates()
    day = f"; {dates[0]:%F}" if dates else ""
    loads = [
        float(result.facts["load_avg_1min"])
        for _, one in found
        for result in one.results.values()
        if "load_avg_1min" in result.facts
    ]
    load = f"  Load average while measuring: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    python = f"{facts.get('python_version', '?')}, {facts.get('python_compiler', platform.python_compiler())}"
    return (
        f"{facts.get('cpu_model_name', platform.processor())}, {facts.get('cpu_count')} cores; "
        f"{facts.get('platform')}; Python {python}{day}.{load}"
    )


def fill(page, texts):
    """Put the texts between their markers; markers without a text keep what they have."""

    def text_of(match):
        opening, name, closing = match.groups()
        return f"{opening}\n{texts[name]}\n\n{closing}" if name in texts else match[0]

    page.write_text(MARKED.sub(text_of, page.read_text()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="timings that exist already")
    parser.add_argument("--redraw", action="store_true", help="only the picture, of results.json")
    options = parser.parse_args()
    if options.redraw:
        charts.draw(recorded(), PICTURES)
        return
    source = options.source
    if source is not None and not source.exists():
        parser.error(f"--from {source}: no such file; python -m benchmarks --json FILE makes one")
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            source = Path(folder, "timings.json")
            command = [sys.executable, "-m", "benchmarks", "--json", os.fspath(source)]
            subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.DEVNULL)
        found = runner.load(source)
    write_json(everything(found))
    charts.draw(found, PICTURES)
    texts = blocks(found)
    for page in (HERE / "RESULTS.md", HERE.parent / "README.md", HERE.parent / "README_CN.md"):
        fill(page, texts)


if __name__ == "__main__":
    main()
