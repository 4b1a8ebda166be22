"""FastDeploy changes in one small way: the gate closes each seam whose functions have new code."""

import pytest

from tests.lib import sanitized_forks
from tests.lib.nursery import with_paddle
from tests.upstream.changes import CHANGES
from tests.upstream.judge import BROKEN, DATA, NO_PLACE

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(sanitized_forks.wanted(), reason="what it runs is in other tests, too"),
]
HARMLESS = {
    *("no change", "log lines changed", "enum member added", "base class in between"),
    *("default changed", "number changed"),
}
"""What no function's text has: it is read where the value is, or is nobody's."""
OF_DATA = {"answer, field added", "answer, field renamed", "answer, class changed", "generator"}
"""What classes of answers and FastDeploy's own generators decide, not the gate."""
SEAMS_OF = {
    "scheduler": {"delivery", "wake-up"},
    "server": {"sending"},
    "sender": {"sending"},
    "stamp added": {"stamps"},
    "stamp changed": {"stamps"},
    "key changed": {"dictionaries"},
    "key removed": {"dictionaries"},
    "log-probabilities": {"api chunks"},
}
"""Seams that such a change closes; the others stay open.  Any other closes the engine's class."""


@pytest.fixture(scope="module")
def told():
    return with_paddle("import runpy; runpy.run_module('tests.upstream', run_name='__main__')")


def test_each_change_closes_what_it_changes(told):
    for change in CHANGES:
        left = told[change.name]
        assert not {BROKEN, NO_PLACE} & left.keys(), (change.name, left)
        if change.kind in HARMLESS:
            assert left.keys() <= {"token processor"}, (change.name, left)
        elif change.kind in OF_DATA:
            assert left.keys() <= {DATA}, (change.name, left)
        elif change.kind in SEAMS_OF:
            assert left.keys() == SEAMS_OF[change.kind], (change.name, left)
        else:
            assert "token processor" in left, (change.name, left)


def test_the_reason_names_function_file_and_line(told):
    reason = told["new statement: _append_tokens"]["token processor"]
    assert reason.startswith("TokenProcessor._append_tokens has new code in line ")
    assert "step.py" in reason
