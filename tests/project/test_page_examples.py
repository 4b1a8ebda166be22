"""The documents' examples run as they are printed, each by itself, in an empty folder."""

import pytest

from tests.lib.page_examples import examples, run_example
from tests.lib.rows import each


@pytest.mark.nightly
@each("name, block", examples())
def test_every_example_runs_by_itself(name, block, own_namespace, tmp_path):
    if not own_namespace:
        pytest.skip(
            "the examples use queue ids that others may use, too: they need an IPC namespace of their own"
        )
    run_example(block, tmp_path)
