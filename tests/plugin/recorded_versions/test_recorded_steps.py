"""Steps recorded on another version's own class, replayed on its double: golden_steps/README.md."""

import os

import pytest

from tests.lib.nursery import with_paddle
from tests.lib.paths import TESTS
from tests.lib.rows import each

pytestmark = pytest.mark.framework

STEPS = TESTS / "golden_steps"
REPLAYED = """
import json
from fastdeploy.output.token_processor import TokenProcessor
from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.replay import Replay
from tests.lib.step_replay.traces import Trace, trace_names
found, names = {}, trace_names()[::EVERY]
for name in names:
    with Replay(Trace.load(name), TokenProcessor) as replay:
        lines = [line for step in replay.steps() for line in differences(step.expected, step.actual)]
        lines += differences(*replay.end())
    if lines:
        found[name] = lines[:3]
print(json.dumps([len(names), found]))
"""


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
@each("version", [folder.name for folder in sorted(STEPS.iterdir()) if folder.is_dir()])
def test_the_double_does_what_the_version_did(version, every):
    environment = {
        **os.environ,
        "FD_POSTPROC_DOUBLE": version,
        "FD_POSTPROC_GOLDEN_STEPS": str(STEPS / version),
        "FD_PLUGINS": "nobody",
    }
    for name in ("FD_POSTPROC_FASTDEPLOY", "PROMETHEUS_MULTIPROC_DIR"):
        environment.pop(name, None)
    replayed, found = with_paddle(REPLAYED.replace("EVERY", str(every)), environment)
    assert replayed
    assert found == {}
