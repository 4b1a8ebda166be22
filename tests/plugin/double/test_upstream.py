"""FastDeploy changes in one small way: the plug-in is equal or falls back, and never raises."""

import json
import os
import subprocess

import pytest

from tests.lib import real_tree, sanitized_forks
from tests.lib.children import python
from tests.lib.paths import ROOT
from tests.lib.quiet import imported
from tests.upstream.changes import every_change
from tests.upstream.judge import ASIDE, FAST, GOOD, NO_PLACE
from tests.upstream.page import LIBRARIES, PAGE, items

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(sanitized_forks.wanted(), reason="minutes; what it runs is in other tests, too"),
]
EVERY = 128  # of these in the suite, one


def outcomes(*arguments):
    """By change, what `python -m tests.upstream` says of the double."""
    imported("paddle")
    run = "import runpy; runpy.run_module('tests.upstream', run_name='__main__')"
    done = subprocess.run(
        [*python(run), *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/fastdeploy_double"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout.rpartition("told: ")[2])
    return {one["name"]: one for one in told}


def check(told):
    wrong = {name: one for name, one in told.items() if one["outcome"] not in GOOD}
    assert wrong == {}, wrong


def test_some_changes(request):
    first = len(request.node.name) % EVERY
    told = outcomes("--first", str(first), "--step", str(EVERY))
    assert len(told) >= len(every_change()) // EVERY
    check(told)


EXPECTED = {
    "end condition: stop_token_ids of the requests": (ASIDE, "stop_token_ids"),
    "order: otherwise above 16 requests": (ASIDE, ""),
    "moved to a helper: postprocess, a function": (FAST, "postprocess"),
    "log lines changed: postprocess": (FAST, ""),
}


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_becomes_of_a_change(every):
    expected = dict([*EXPECTED.items()][::every])
    told = outcomes("--only", *expected)
    assert list(told) == [one.name for one in every_change() if one.name in expected]
    for change, (outcome, why) in expected.items():
        assert told[change]["outcome"] == outcome
        assert why in told[change]["why"]


@pytest.mark.nightly
def test_every_change():
    told = outcomes()
    assert len(told) >= 100
    check(told)


def test_the_page_has_every_change():
    text = PAGE.read_text().partition(LIBRARIES.splitlines()[1])[0]
    named = [(kind, change) for kind, changes in items(text).items() for change in changes]
    wanted = [(one.kind.lower(), one.what.replace("; ", ", ")) for one in every_change()]
    assert sorted(named) == sorted(wanted)


@pytest.mark.nightly
@pytest.mark.fastdeploy
@real_tree.each_tree
def test_every_change_of_a_tree(tree, tmp_path):
    real_tree.serves(tree)
    run = "runpy.run_module('tests.upstream', run_name='__main__')"
    program = f"import sys, runpy; sys.argv = ['upstream', '--json']; {run}"
    told = {one["name"]: one for one in real_tree.run(tree, program, folder=tmp_path)[0]}
    found = {name: one for name, one in told.items() if one["outcome"] != NO_PLACE}
    assert len(found) >= 80
    check(found)
