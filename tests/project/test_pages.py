"""The documents' commands and examples run as they are printed, each by itself in an empty folder."""

import shlex
import sys
from pathlib import Path

import pytest

from fd_postproc import cli
from tests.lib.page_commands import run_command, spelled_out, unique_commands
from tests.lib.page_examples import examples, run_example
from tests.lib.rows import each

COMMANDS = unique_commands()


def test_every_printed_command_is_one():
    assert {shlex.split(command)[1] for command in COMMANDS} == set(cli.COMMANDS)
    assert {where for where in COMMANDS.values() if where.endswith("--help")}
    for command in COMMANDS:
        cli._parser().parse_args(spelled_out(command))


@pytest.fixture
def alone(own_namespace):
    if not own_namespace:
        pytest.skip("the documents' queues are others', too: they need an IPC namespace of their own")


@pytest.mark.nightly
@each("command", COMMANDS)
def test_every_printed_command_runs(command, alone, tmp_path_factory):
    run_command(command, Path(sys.executable).parent, tmp_path_factory.mktemp("command"))


@pytest.mark.nightly
@each("name, block", examples())
def test_every_example_runs_by_itself(name, block, alone, tmp_path_factory):
    run_example(block, tmp_path_factory.mktemp("example"))
