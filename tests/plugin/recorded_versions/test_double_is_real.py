"""The double against the trees that FD_POSTPROC_FASTDEPLOY names: recorded now, it does what they do.

The interpreter must have what FastDeploy imports on a CPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.paths import TESTS

TREES = [Path(path) for path in os.environ.get("FD_POSTPROC_FASTDEPLOY", "").split(os.pathsep) if path]

pytestmark = [
    pytest.mark.framework,
    pytest.mark.fastdeploy,
    pytest.mark.skipif(not TREES, reason="FD_POSTPROC_FASTDEPLOY names no FastDeploy source tree"),
]

OUTCOMES = """
import sys
from tests.lib import trial_outcomes
from fastdeploy.output import token_processor
from tools.accept.classes import compare
verdict = compare(token_processor)
sys.exit(f"aside: {verdict.reason}") if not verdict.compatible else trial_outcomes.show(token_processor)
"""


def run(arguments, folders, logs, **variables):
    """The last line that a process writes, or what it says of its failure."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FD_")}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
    environment |= {"FD_LOG_DIR": str(logs), "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env=environment,
        cwd=logs,
        capture_output=True,
        text=True,
    )
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module", params=TREES, ids=str)
def tree(request, tmp_path_factory):
    """(tree, its recording)."""
    logs = tmp_path_factory.mktemp("recorded")
    well, told = run([TESTS / "shapes" / "record_shapes.py", request.param], [], logs)
    assert well, told
    recording = logs / "now.json"
    recording.write_text(told)
    return request.param, recording


def test_every_outcome_of_the_trial_is_the_trees(tree, tmp_path):
    path, recording = tree
    lib = TESTS.parent
    served, real = run(["-c", OUTCOMES], [path, lib], tmp_path)
    if not served and (reason := real.strip().splitlines()[-1]).startswith("aside: "):
        pytest.skip(f"the plug-in stands {reason}")
    assert served, real
    well, double = run(
        ["-c", OUTCOMES], [TESTS / "fastdeploy_double", lib], tmp_path, FD_POSTPROC_DOUBLE=str(recording)
    )
    assert well, double
    real, double = (json.loads(told.splitlines()[-1]) for told in (real, double))
    assert list(double) == list(real)
    for script, outcomes in real.items():
        for expected, actual in zip(outcomes, double[script], strict=True):
            assert actual == expected, script


def test_the_recording_is_one_that_the_tests_have(tree):
    """Of a tree that is none of those recorded, record it: shapes/README.md."""
    path, recording = tree
    known = {file.stem: json.loads(file.read_text()) for file in (TESTS / "shapes").glob("*.json")}
    now = json.loads(recording.read_text())
    if now not in known.values():
        pytest.skip(f"{path} is none of the versions recorded: {', '.join(sorted(known))}")
