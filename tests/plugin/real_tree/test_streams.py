"""Steps over ZeroMQ on the real classes: FastDeploy's own sockets, Paddle's tensors, its workers' thread."""

import json
import os
import subprocess
import sys

import pytest

from tests.lib.paths import TESTS
from tests.lib.real_tree import LIB, check, each_tree, run, serves

pytestmark = pytest.mark.fastdeploy


@each_tree
def test_the_code_of_steps_over_zeromq_is_known(tree):
    assert serves(tree, FD_USE_GET_SAVE_OUTPUT_V1="1")["compatible"]


@each_tree
def test_speculative_scripts_of_the_trial_through_fastdeploys_own_socket(tree, tmp_path):
    serves(tree, FD_USE_GET_SAVE_OUTPUT_V1="1")
    told, _ = run(tree, str(LIB / "drafts_over_zmq.py"), folder=tmp_path)
    assert told["difference"] is None
    assert told["scripts"] >= 5
    assert told["steps"] > 15


@each_tree
@pytest.mark.nightly
def test_the_recorded_steps_on_the_trees_own_classes(tree, tmp_path):
    """Its class and ours, step by step; the double lends what acts on the outside, as recorded of it."""
    check(tree)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FD_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS / "fastdeploy_double", TESTS.parent))),
        "FD_POSTPROC_FASTDEPLOY": str(tree),
        "FD_POSTPROC_KNOWN": str(TESTS / "known_double.json"),
        "FD_PLUGINS": "nobody",
        "PYTHONWARNINGS": "ignore",
    }
    if (TESTS / "shapes" / f"{tree.name}.json").is_file():
        environment["FD_POSTPROC_DOUBLE"] = tree.name
    program = subprocess.run(
        [sys.executable, LIB / "streams_on_a_tree.py"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = [line for line in program.stdout.splitlines() if line.startswith("told: ")]
    if not told and "ModuleNotFoundError: No module named 'fastdeploy." in program.stderr:
        pytest.skip(f"the double has not all that this tree imports: {program.stderr[-200:]}")
    assert told, program.stderr[-2000:]
    found = json.loads(told[-1].removeprefix("told: "))
    assert found["wrong"] == {}
    assert found["compared"] > 300, found["skipped"]
