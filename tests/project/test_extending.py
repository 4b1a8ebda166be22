"""docs/extending.md is true to the letter: its diffs, applied to a copy of the tree, make a channel.

Nothing of the channel is said here but its name.  A build of the copy takes half a minute: nightly.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.lib.page_commands import ROOT, as_a_user
from tests.lib.tree_copy import copy_tree

nightly = pytest.mark.nightly

NEW = "spec_draft"
WALK = (ROOT / "docs" / "extending.md").read_text().partition("\n## A channel")[2].partition("\n## ")[0]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", WALK, flags=re.M | re.S)


def apply(diff, tree):
    """Apply one of the page's diffs.

    ``---`` begins a file and ``@@`` another place in it.  There are no line numbers, which would be wrong
    after each change of the file: the old lines must be in it exactly once.
    """
    for part in re.split(r"^--- ", diff, flags=re.M)[1:]:
        name, _, places = part.partition("\n")
        text = (tree / name).read_text()
        for place in re.split(r"^@@.*\n", places, flags=re.M):
            lines = place.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in marks) for marks in (" -", " +"))
            assert text.count(old) == 1, f"{name} does not hold these lines once:\n{old}"
            text = text.replace(old, new)
        (tree / name).write_text(text)


def test_the_diffs_fit_the_sources(tmp_path):
    """Told at once, not in the night, when a place has changed that the page shows."""
    for folder in "fd_postproc", "tests/reference":
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so"))
    assert len(blocks("diff")) == 3
    for diff in blocks("diff"):
        apply(diff, tmp_path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with the page's channel, built in place."""
    tree = copy_tree(tmp_path_factory.mktemp("extended") / "tree")
    for diff in blocks("diff"):
        apply(diff, tree)
    build = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j", "2"],
        cwd=tree,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert build.returncode == 0, build.stdout
    return tree


@pytest.fixture
def python(tree, tmp_path, default_limits):
    """Run Python outside the checkout, with the copy's package, in an IPC namespace of the test's own."""

    def run(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**as_a_user(), "PYTHONPATH": str(tree)},
            text=True,
            capture_output=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    where = run("-c", "import fd_postproc._core as core; print(core.__file__)")
    assert where.startswith(f"{tree}{os.sep}")
    return run


@nightly
def test_the_page_s_example_runs(python):
    (example,) = blocks("python")
    assert NEW in example
    python("-c", example)


@nightly
def test_it_is_decoded_as_the_reference_does(python):
    python(
        "-c",
        f"""
import fd_postproc as fp
from tests import reference

step = fp.Step.from_arrays({NEW!r}, [2, -9, 0, 6] * 128, range(1024))
for dialect in "packed", "legacy", "compact":
    message = fp.encode(step, dialect)
    assert message == reference.encode(reference.ReferenceStep.from_step(step), dialect)
    mtype = 2 if dialect == "compact" else 1
    assert fp.decode(message, {NEW!r}, mtype=mtype) == step
    again = reference.decode(message, {NEW!r}, mtype=mtype)
    assert again == reference.ReferenceStep.from_step(fp.decode(message, {NEW!r}, mtype=mtype))
""",
    )


@nightly
@pytest.mark.parametrize("arguments", [(), ("--load", "300,3,1", "--channel", NEW, "--steps", "50")])
def test_the_demo_runs(python, arguments):
    out = " ".join(python("-m", "fd_postproc", "demo", *arguments).split())
    assert "every one arrived equal" in out


@nightly
def test_the_demo_says_what_the_channel_cannot_carry(python):
    python("-m", "fd_postproc", "demo", "--load", "3,3,21", "--channel", NEW, status=2)


@nightly
def test_the_other_commands_know_it(python, tmp_path):
    def command(*arguments):
        return python("-m", "fd_postproc", *arguments)

    send = f"""
import fd_postproc as fp

with fp.Sender({NEW!r}, queue_id=50123) as sender:
    sender.send(fp.Step.from_arrays({NEW!r}, [2, -9, 0, 6], range(8)))
"""
    python("-c", send)
    for named in ("--channel", NEW), ():
        assert "preempted" in command("inspect", "50123", *named)
    # Status 1 is an error that it found: FastDeploy's messages do not fit here.
    seen = json.loads(command("doctor", "--queue-id", "50123", "--channel", NEW, "--json"))
    assert NEW in {finding["subject"] for finding in seen["findings"]}
    command("record", "50123", "night.fdrec", "--channel", NEW, "--count", "1")
    assert NEW in command("inspect", "night.fdrec")
