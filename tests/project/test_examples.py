"""The programs in ``examples/`` run as their README says."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from fd_postproc import queues
from tests.lib.page_commands import as_a_user
from tests.lib.paths import ROOT

FOLDER = ROOT / "examples"
DOUBLE = ROOT / "tests" / "fastdeploy_double"


@pytest.fixture
def run(own_namespace, tmp_path):
    """A function that runs an example in an empty folder and gives what it prints."""
    if not own_namespace:
        pytest.skip("the examples use queue ids that others may use, too")

    def run(name, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, FOLDER / name, *arguments],
            cwd=tmp_path,
            env={**as_a_user(), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    yield run
    for queue in queues.list_queues():
        queues.remove_queue(queue.msqid)


def test_every_example_is_in_their_readme_and_has_a_test():
    programs = {path.name for path in FOLDER.glob("*.py")}
    page = (FOLDER / "README.md").read_text()
    assert {name for name in programs if f"[{name}]({name})" in page} == programs
    tests = Path(__file__).read_text()
    assert {name for name in programs if f'run("{name}"' in tests} == programs


def test_what_is_sent_is_printed(run):
    assert run("send_tensors.py", "8002", "2") == ["sent"]
    assert run("print_steps.py", "8002", "2") == [
        f"request {request}: {what}"
        for number in (0, 1)
        for request, what in [
            (0, f"token {100 + number}, logprob -0.50"),
            (0, f"token {200 + number}, logprob -0.50"),
            (1, f"token {300 + number}, logprob -0.50"),
            (2, "code -9"),
        ]
    ]


@pytest.mark.parametrize("framework", ["numpy", pytest.param("paddle", marks=pytest.mark.framework)])
def test_a_get_op_fills_its_tensors(run, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    assert run("get_op.py", framework) == [
        "tokens [[11, 7], [42, 5]]",
        "scores [[-0.1, -2.5], [-0.7, -0.9]]",
        "ranks [1, 1]",
    ]
    assert queues.list_queues() == []


def test_a_queue_is_recorded_and_read(run):
    run("send_tensors.py", "8002", "3")
    assert run("record_queue.py", "8002", "spec_topk", "night.fdrec") == [
        f"message {number}: 3 requests, 3 tokens, counts [2, 1, -9]" for number in range(3)
    ]


@pytest.mark.framework
def test_the_plug_in_is_loaded_where_it_is_named(run):
    """In the double of FastDeploy: of its loader and its class."""
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("paddle is not installed")
    lines = run("which_processor.py", PYTHONPATH=f"{DOUBLE}:{ROOT}", PYTHONWARNINGS="ignore")
    assert lines == [
        "FD_PLUGINS=(none): fastdeploy.output.token_processor.TokenProcessor",
        "FD_PLUGINS=fd_postproc: fd_postproc.fastdeploy.engine.processor.TokenProcessor",
    ]
