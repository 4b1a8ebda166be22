"""Random steps in every channel and role on FastDeploy's class and on the plug-in's: they do the same."""

from collections import Counter

import pytest

from tests.lib.quiet import imported
from tools.accept import classes, random_steps

pytestmark = pytest.mark.framework


@pytest.mark.parametrize("count", [16, pytest.param(2000, marks=pytest.mark.nightly)])
def test_random_steps_are_equal_on_the_plugin(count, monkeypatch):
    """A difference comes with the number of its script, which is all that the script is made of."""
    monkeypatch.setattr("tools.accept.trial._BETWEEN_STEPS", 0.0)
    with classes.trusting():
        pair, facts = classes.prepared(imported("fastdeploy.output.token_processor"))
        kinds, found = Counter(), {}
        with pair[0].box:
            for number in range(count):
                script = random_steps.script(number, facts)
                kinds[script.channel, script.role] += 1
                if difference := classes.first_difference_in(script, *pair, facts):
                    found[script.name] = difference
    assert found == {}
    assert len(kinds) == 4 * len({*random_steps.SPLITWISE_ROLES})
