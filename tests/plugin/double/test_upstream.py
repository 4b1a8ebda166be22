"""FastDeploy changes in one small way: the gate closes each seam whose functions have new code."""

import json
import os
import subprocess

import pytest

from tests.lib import sanitized_forks
from tests.lib.children import python
from tests.lib.paths import ROOT
from tests.lib.quiet import imported
from tests.upstream.changes import CHANGES
from tests.upstream.judge import BROKEN, DATA, NO_PLACE

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(sanitized_forks.wanted(), reason="what it runs is in other tests, too"),
]
HARMLESS = {
    *("no change", "log lines changed", "enum member added", "base class in between", "shape to come"),
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


def verdict(change):
    """What a change is an example of."""
    return change.kind if change.kind in HARMLESS | OF_DATA | SEAMS_OF.keys() else change.where


NEW_END = "end condition: stop_token_ids of the requests"
SOME = [NEW_END, *{verdict(change): change.name for change in CHANGES}.values()]
"""A change for each verdict; the others are judged at night."""


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.nightly)])
def told(request):
    imported("paddle")
    run = "import runpy; runpy.run_module('tests.upstream', run_name='__main__')"
    done = subprocess.run(
        [*python(run), "--json", *(SOME if request.param == "some" else ())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/fastdeploy_double"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "told: " in done.stdout, done.stderr
    return json.loads(done.stdout.rpartition("told: ")[2])


def test_each_change_closes_what_it_changes(told):
    changes = [change for change in CHANGES if change.name in told]
    assert len(changes) == len(told) in (len(SOME), len(CHANGES))
    for change in changes:
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
    reason = told[NEW_END]["token processor"]
    assert reason.startswith("TokenProcessor._append_tokens has new code in line ")
    assert "step.py" in reason
