"""The benchmarks' own extensions are built when they are asked for; a clean checkout has none."""

import re

from tests.lib.paths import ROOT


def test_they_are_imported_from_where_they_are_built():
    imports = re.compile(r"^\s*from (\.|benchmarks)( import _floor|\._objects)", re.M)
    found = {path.name for path in (ROOT / "benchmarks").rglob("*.py") if imports.search(path.read_text())}
    assert found == {"built.py"}
