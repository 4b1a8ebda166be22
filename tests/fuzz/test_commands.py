"""Whatever a file holds, a command that reads it ends with a status and words, through the command line.

In one process: a traceback is an exception here.  A failure names the seed, from which
``hostile_files.file_of`` makes the file again.
"""

import contextlib
import functools
import io
import json
import random

import pytest

from fd_postproc import cli
from tests.lib import hostile_files

COMMANDS = {
    "inspect": lambda path, rng: ["inspect", path],
    "inspect --index": lambda path, rng: ["inspect", path, "--index", str(rng.randrange(3))],
    "inspect --channel": lambda path, rng: [
        "inspect", path, "--channel", rng.choice(hostile_files.CHANNELS), "--layout", "xpu",
    ],
    "explain": lambda path, rng: ["explain", path],
    "explain --json": lambda path, rng: ["explain", path, "--json"],
    "explain REQUEST": lambda path, rng: ["explain", path, hostile_files.REQUEST],
    "explain REQUEST --json": lambda path, rng: ["explain", path, hostile_files.REQUEST, "--json"],
    "explain --follow": lambda path, rng: ["explain", path, "--follow"],
    "replay": lambda path, rng: ["replay", path, "QUEUE", "--full-speed", "--timeout", "0.001"],
}  # fmt: skip

LIKELY = {
    "recording": ("inspect", "replay"),
    "flight": ("explain", "inspect", "replay"),
    "message": ("inspect",),
}
"""Beginnings of the commands that read such a file."""


@pytest.fixture(autouse=True)
def one_parser(monkeypatch):
    """The command line's parser is made once: it takes longer than most commands."""
    monkeypatch.setattr(cli, "_parser", functools.cache(cli._parser))


def ended(arguments):
    """Status, output and errors of a command."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main(arguments)
    return status, out.getvalue(), errors.getvalue()


def try_file(seed, path, queue):
    """Give the file of a seed to a command that reads such files, or to any."""
    content, kind = hostile_files.file_of(seed)
    path.write_bytes(content)
    rng = random.Random(seed + 1)
    begins = LIKELY[kind] if rng.random() < 0.9 else ("",)
    name = rng.choice([name for name in COMMANDS if name.startswith(begins)])
    arguments = [f"msqid:{queue.id}" if one == "QUEUE" else one for one in COMMANDS[name](str(path), rng)]
    try:
        status, out, errors = ended(arguments)
    except BaseException as error:
        error.add_note(f"seed {seed}, a {kind}: {' '.join(arguments)}")
        raise
    while queue.current_messages:
        queue.receive()
    assert status in (0, 1), f"seed {seed}: status {status}"
    in_words = errors.startswith(f"fd-postproc {arguments[0]}: ") or "sent to queue " in errors
    assert status == 0 or in_words, f"seed {seed}: {errors}"
    assert status or out or errors, f"seed {seed}: no words"
    if status == 0 and "--json" in arguments:
        json.loads(out, parse_constant=lambda name: pytest.fail(f"seed {seed}: {name} is no JSON"))
    return name


def test_a_hundred_files(tmp_path, queue):
    assert {try_file(seed, tmp_path / "file", queue) for seed in range(100)} == set(COMMANDS)


@pytest.mark.nightly
def test_a_hundred_thousand_files(tmp_path, queue):
    first = random.SystemRandom().randrange(1 << 40)
    for seed in range(first, first + 100_000):
        try_file(seed, tmp_path / "file", queue)
