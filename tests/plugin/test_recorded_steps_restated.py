"""FastDeploy's recorded steps, replayed on the restated step: golden_steps/README.md.

FD_POSTPROC_GOLDEN_STEPS=FOLDER reads other traces.  With FD_POSTPROC_FASTDEPLOY=PATH the traces run on that
tree's own class too.
"""

import json
import os
import re

import pytest

from tests.lib.quiet import imported
from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.traces import FOLDER, Trace, tables, trace_names

pytestmark = pytest.mark.framework

NAMES = trace_names()
RANDOM = re.compile(r"_r\d+_")
CLASSES = ["installed", "restated"] if os.environ.get("FD_POSTPROC_FASTDEPLOY") else ["restated"]


def token_processor(kind="restated"):
    """The class of the module that FastDeploy's engine imports, or the restated step on it."""
    module = imported("fastdeploy.output.token_processor")
    bind = imported("tests.restated").bind
    return module.TokenProcessor if kind == "installed" else bind(module)


def replay_on(cls, trace):
    """Lines that say what differs: those of the first step that does, or of the end."""
    with imported("tests.lib.step_replay.replay").Replay(trace, cls) as replay:
        for step in replay.steps():
            lines = differences(step.expected, step.actual)
            if lines:
                return [f"step {step.number}: {line}" for line in lines]
        return [f"end: {line}" for line in differences(*replay.end())]


def test_golden_step_traces_are_those_of_the_index():
    index = json.loads((FOLDER / "index.json").read_text())
    assert sorted(entry["name"] for entry in index) == NAMES
    assert NAMES


OFTEN = [name for name in NAMES if not RANDOM.search(name)][::8]


@pytest.mark.parametrize("kind", CLASSES)
@tables(OFTEN, NAMES)
def test_golden_step_traces_replay_equal(names, kind):
    found = {name: replay_on(token_processor(kind), Trace.load(name)) for name in names}
    assert {name: lines for name, lines in found.items() if lines} == {}
