"""How many examples a property is given."""

from hypothesis import settings

USUAL = 60  # of the suite, as conftest.py has it


def examples(count):
    """Settings with so many examples in the suite, and more in proportion where the profile asks for more."""
    return settings(max_examples=max(1, count * settings.default.max_examples // USUAL))
