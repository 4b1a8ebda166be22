"""The command line, used as a person uses it: real queues, processes, signals and terminals."""

from functools import partial

import pytest

from tests.lib.commands import run_main


@pytest.fixture
def run(capsys):
    """A function that runs a command and gives (status, stdout, stderr)."""
    return partial(run_main, capsys)
