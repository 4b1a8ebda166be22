"""Rules for words in docstrings and comments: docs/development.md, "Style of words"."""

import ast
import re

import pytest

from tests.lib.paths import ROOT

SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".h", ".cu"}
SOURCES = sorted(
    path
    for folder in ("fd_postproc", "cuda")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES
)
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
UNNAMED = re.compile(r"\b_?(some|no|any)body\b|\b_?whoever\b", re.I)
LITERAL = re.compile(r'``[^`\n]*``|"(?:\\.|[^"\\\n])*"')
LONGEST_FIRST_LINE = 100


def prose(text):
    """Source without quoted words and string literals, which may be texts for users."""
    return LITERAL.sub("", text.replace('"' * 3, ""))


def first_lines(text):
    """Line number and first line of each docstring, with its indentation and quotes."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            ):
                yield first.lineno, lines[first.lineno - 1]


def test_docstrings_and_comments_name_their_subject():
    """Name the thread, the process or the user in place of "somebody" and the like."""
    assert len(SOURCES) > 200
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        for line in prose(path.read_text()).splitlines()
        if UNNAMED.search(line)
    ]
    assert not found


@pytest.mark.parametrize("folder", ["fastdeploy", "doctor", "explain", "transport", "cli", "ops", "flight"])
def test_first_lines_of_docstrings_fit_the_limit(folder):
    paths = [path for path in PYTHON if f"fd_postproc/{folder}" in str(path.relative_to(ROOT))]
    assert len(paths) > 3
    long = [
        f"{path.name}:{number}: {len(line)}"
        for path in paths
        for number, line in first_lines(path.read_text())
        if len(line) > LONGEST_FIRST_LINE
    ]
    assert not long


def test_an_unnamed_subject_is_seen():
    assert UNNAMED.search(prose('x = "a"  # somebody'))
    assert UNNAMED.search(prose('"""Whoever asks\nlooks."""'))
    assert UNNAMED.search(prose("def _whoever(): ..."))
    assert not UNNAMED.search(prose('text = "nobody yet"'))


def test_a_long_first_line_is_seen():
    text = f'def f():\n    """{"a" * 90}.\n\n    More."""\n'
    assert [(number, len(line)) for number, line in first_lines(text)] == [(2, 98)]
