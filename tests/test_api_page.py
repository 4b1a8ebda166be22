"""docs/api.md is what the docstrings say."""

import itertools
import runpy
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parent.parent / "docs" / "generate_api.py"


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(GENERATOR))


def test_the_page_is_up_to_date(generator):
    written = GENERATOR.with_name("api.md").read_text()
    assert written == generator["page"](), "run python docs/generate_api.py"


def test_everything_is_described(generator):
    """A heading is followed by a text, not by the next heading."""
    blocks = generator["page"]().split("\n\n")
    bare = [a for a, b in itertools.pairwise(blocks) if a.startswith("###") and b.startswith("#")]
    assert not bare
