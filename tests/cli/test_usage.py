"""Help, and wrong usage of every command."""

import subprocess

from fd_postproc.cli import COMMANDS
from tests.lib.children import python
from tests.lib.rows import each


@each("command", COMMANDS)
def test_every_command_explains_itself_with_examples(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"fd-postproc {command}" in out.split("examples:")[1]
    assert command in run("--help")[1]


@each("width", [50, 200])
@each("command", COMMANDS)
def test_help_is_as_wide_as_the_terminal(run, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = run(command, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= width
    assert f"usage: fd-postproc {command}" in out


def test_help_does_not_import_rich():
    code = (
        "import contextlib, sys\nfrom fd_postproc.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['demo', '--help'])\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run(python(code), stdout=subprocess.DEVNULL).returncode == 0


@each(
    ("arguments", "why"),
    [
        ([], "COMMAND"),
        (["nothing"], "nothing"),
        (["demo", "--repeat", "0"], "from 1"),
        (["inspect", "key:zz"], "'zz'"),
        (["inspect", "key:0"], "other than 0"),
        (["inspect", "msqid:-1"], "msqid -1"),
        (["inspect", "99999999999"], "32 bits"),
        (["inspect", "1", "--index", "x"], "from 0"),
        (["inspect", "1", "--layout", "1,2"], "four numbers"),
        (["inspect", "1", "--layout", "0,20,6,256"], "max_batch = 0"),
        (["record", "name", "file"], "queue id"),
        (["record", "1", "file", "--seconds", "0"], "above 0"),
        (["record", "1", "file", "--seconds", "soon"], "above 0"),
        (["replay", "file", "1", "--speed", "2", "--full-speed"], "not allowed"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_value(run, arguments, why):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert why in err.splitlines()[-1]
