"""The command line, used as a person uses it: real queues, processes, signals and terminals."""

import pytest

from fd_postproc.cli import main


@pytest.fixture
def run(capsys):
    """A function that runs a command and gives (status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
