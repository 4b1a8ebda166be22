"""The documents' commands run as they are printed, by the installed package, in an empty folder."""

import shlex
import sys
from pathlib import Path

import pytest

from fd_postproc import cli
from tests.lib.page_commands import run_command, spelled_out, unique_commands
from tests.lib.rows import each

COMMANDS = unique_commands()


def test_all_commands_are_found():
    named = {shlex.split(command)[1] for command in COMMANDS}
    assert named == set(cli.COMMANDS)
    assert "fd-postproc replay night.fdrec 8002" in COMMANDS
    assert {where for where in COMMANDS.values() if where.endswith("--help")}


def test_every_printed_command_is_one():
    for command in COMMANDS:
        cli._parser().parse_args(spelled_out(command))


@pytest.mark.nightly
@each("command", COMMANDS)
def test_every_printed_command_runs(command, own_namespace, tmp_path):
    if not own_namespace:
        pytest.skip(
            "the commands use queues that others may use, too: they need an IPC namespace of their own"
        )
    run_command(command, Path(sys.executable).parent, tmp_path)
