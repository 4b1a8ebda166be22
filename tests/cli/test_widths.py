"""What a terminal shows, or a pipe gets, at every width: no number is cut, no column lost."""

import os
import re

import pytest

from fd_postproc.cli import workload
from fd_postproc.cli.tables import Grid, fitting
from tests.lib.commands import all_from, at_terminal

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown_at(width, *arguments, env=None, forked=True):
    """The lines that a command leaves on a terminal of some width."""
    environment = {**os.environ, "TERM": "xterm", **(env or {})}
    environment.pop("COLUMNS", None)
    with at_terminal(*arguments, env=environment, size=(200, width), forked=forked) as (leader, status):
        seen = all_from(leader)
        assert status() == 0
    text = seen.decode()
    return CONTROL.sub("", text[text.rindex("\x1b[2K") :]).replace("\r", "").splitlines()


def numbers_of(lines):
    return [word.strip(",:") for line in lines for word in re.split(r"[\s|]+", line)]


def check(lines, width):
    assert max(map(len, lines)) <= width
    words = numbers_of(lines[next(k for k, line in enumerate(lines) if line.startswith("Messages;")) :])
    for item in workload.recorded_items():
        for number in item.step.batch, item.step.rows, item.recorded_size, len(item.payload):
            assert f"{number:,}" in words
    assert words.count("530,448") == 9 + 1  # and in the summary
    assert words.count("88,072") == 4
    assert words.count("equal") >= 22  # no column is lost
    assert not any("\u2026" in word for word in words)


DEMO = ("demo", "--all", "--pace", "0.001", "--repeat", "1")


@pytest.mark.parametrize(
    "width", [40, 80, 200, *(pytest.param(width, marks=pytest.mark.nightly) for width in (60, 100))]
)
def test_the_demo_at_every_width(width):
    check(shown_at(width, *DEMO), width)


def test_the_demo_in_a_c_locale_without_colour():
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "NO_COLOR": "1"}
    lines = shown_at(80, *DEMO, env=env, forked=False)
    assert all(line.isascii() for line in lines)
    check(lines, 80)


@pytest.mark.parametrize(("columns", "width"), [("40", 40), ("", 100)])
def test_the_demo_into_a_pipe(run, monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    status, out, _ = run("demo", "--all", "--repeat", "1")
    assert status == 0
    check(out.splitlines(), width)


@pytest.mark.parametrize("width", [10, 23, 24, 30, 80])
def test_a_table_never_cuts_a_cell(width):
    from rich.console import Console

    grid = Grid(["name", "size", "what"], [["a", "123,456", "one two"], ["b", "7", "three"]], right=(1,))
    screen = Console(width=width, highlight=False)
    with screen.capture() as capture:
        screen.print(fitting(width, grid))
    assert {"123,456", "7", "three"} <= set(numbers_of(capture.get().splitlines()))
