"""How many examples a property is given, and which of the parameters that cross are in the suite."""

import itertools

import pytest
from hypothesis import settings

USUAL = 60  # of the suite, as conftest.py has it


def examples(count):
    """Settings with so many examples in the suite, and more in proportion where the profile asks for more."""
    return settings(max_examples=max(1, count * settings.default.max_examples // USUAL))


def crossed(*values, every=2):
    """All combinations as parameters: each value is in the suite, each combination is nightly at least."""
    places = itertools.product(*(range(len(each)) for each in values))
    return [
        pytest.param(
            *(each[at] for each, at in zip(values, place, strict=True)),
            marks=[pytest.mark.nightly] if sum(place) % every else [],
        )
        for place in places
    ]
