"""The list of planted bugs is held to the tree, so that each can be planted (``python -m tests.mutate``)."""

from collections import Counter

import pytest

from tests.lib.paths import ROOT
from tests.mutate.bug import every_bug

BUGS = every_bug()


@pytest.mark.parametrize("path", sorted({bug.path for bug in BUGS}))
def test_each_is_one_change_of_the_file(path):
    """Who changes such a line changes its entry, too: tests/mutate/bugs."""
    text = (ROOT / path).read_text()
    wrong = {bug.name: text.count(bug.original) for bug in BUGS if bug.path == path}
    assert {name: count for name, count in wrong.items() if count != 1} == {}


def test_each_has_a_name_of_its_own_and_tests_that_exist():
    assert [name for name, count in Counter(bug.name for bug in BUGS).items() if count > 1] == []
    for bug in BUGS:
        assert bug.original != bug.replacement
        assert all((ROOT / path.partition("::")[0]).exists() for path in bug.tests.split()), bug
