"""One table of codes and of names: what the C headers, stubs and annotations say is what the code says."""

import re

import pytest

import fd_postproc as fp
from fd_postproc import layout
from fd_postproc._core import Step
from fd_postproc.cli.tables import count_text
from fd_postproc.codes import Code
from tests.lib.paths import ROOT


def test_the_save_ops_write_these():
    header = (ROOT / "fd_postproc" / "headers" / "request.h").read_text()
    assert re.findall(r"#define FDP_PREEMPTED \((-\d+)\)", header) == [str(int(Code.PREEMPTED))]


def test_no_file_has_numbers_of_its_own():
    """But the -1 that many things say."""
    for folder in "fastdeploy/engine", "cli", "explain", "flight":
        for path in (ROOT / "fd_postproc" / folder).glob("*.py"):
            assert not re.search(r"(?:==|[=(,:]) ?-[39]\b(?!\])", path.read_text()), path


def test_a_step_says_what_they_mean():
    for code in Code:
        assert f"{code.value} {code.text}" in Step.counts.__doc__
        assert count_text(code) == f"{code.value} {code.text}"


def test_the_literal_types_are_complete():
    assert layout.Channel.__args__ == fp._core.CHANNELS
    with pytest.raises(ValueError, match="'packed', 'legacy', 'compact'") as refused:
        fp.encode(fp.Step.from_arrays("plain", [1], [1]), "another")
    assert ", ".join(map(repr, layout.Dialect.__args__)) in str(refused.value)
