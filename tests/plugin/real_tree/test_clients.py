"""Real client programs in front of FastDeploy's own server, with the plug-in off and on: tests/clients.

Each runs in an environment of its own, with the packages that its second line names, and prints what it saw.
"""

import json
import re
import shutil
import subprocess

import pytest

from tests.lib.paths import TESTS
from tests.lib.real_tree import need_service
from tests.lib.service_tool import TREES, tool

pytestmark = [pytest.mark.fastdeploy, pytest.mark.nightly]

SCRIPTS = sorted((TESTS / "clients").glob("with_*"))
WAYS = {
    "off": None,
    "on": {"FD_POSTPROC_MENDS": "0"},
    "mends": {},
    "interval": {"FD_POSTPROC_STREAM_INTERVAL": "4"},
}
SAYS = (
    "<think>The user asks for the weather, and I know it.</think>\n"
    '<tool_call>{"name": "Weather", "arguments": {"city": "Rome", "degrees": 21}}</tool_call>\n'
    "<response>\nIt is sunny in Rome.\n</response>" + 60 * " and so on"
)
"""Of every answer; it ends with a whole character."""
OPTIONS = {"capture_output": True, "text": True, "timeout": 900}


def command_of(script, folder):
    """How a client is started; the test is skipped where its packages are not to be had."""
    kind, packages = re.search(r"^(?:#|//) (pip|npm): (.+)$", script.read_text(), re.M).groups()
    if kind == "pip":
        try:
            return [tool().generators.environment(folder, *packages.split()) / "python", script]
        except tool().generators.NotToBeHad as error:
            pytest.skip(f"not to be had: {error}")
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder.mkdir()
    made = subprocess.run(["npm", "install", "--prefix", folder, *packages.split()], **OPTIONS)
    if made.returncode:
        pytest.skip(f"not to be had: {packages}: {made.stderr[-500:]}")
    return ["node", shutil.copy(script, folder)]  # which looks for packages beside it


def saw(command, service):
    """What a client saw of a service."""
    model = str(service.folder / "model")
    offline = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [*command, f"{service.url}/v1", model]
    done = subprocess.run(command, env=tool().generators.alone() | offline, **OPTIONS)
    said = [line for line in done.stdout.splitlines() if line.startswith("saw: ")]
    assert said, done.stderr
    said = said[0].removeprefix("saw: ").replace(model, "MODEL")
    return json.loads(re.sub("tool-[0-9a-f]{32}", "tool", said))


def test_every_client_sees_the_same(tmp_path, subtests):
    """One token a result: with several, a parser of FastDeploy's own loses text, which is mended."""
    need_service()
    commands, seen = {}, {way: {} for way in WAYS}
    for script in SCRIPTS:
        with subtests.test(script.stem):
            commands[script.stem] = command_of(script, tmp_path / script.stem)
    for way, environment in WAYS.items():
        with tool().server.running(
            TREES[0], tmp_path / way, plug_in=environment is not None, channel="topk", requests=32,
            parsers=("ernie-x1", "ernie-x1"), says={0: SAYS}, environment=environment,
        ) as service:  # fmt: skip
            for client, command in commands.items():
                with subtests.test(f"{client}, {way}"):
                    seen[way][client] = saw(command, service)
                    assert seen[way][client] == seen["off"][client]
                    assert "Rome" in str(seen[way][client]) or client == "with_lm_eval"
    if "with_lm_eval" in commands:  # docs/fastdeploy.md, "What clients meet"
        assert seen["off"]["with_lm_eval"] == {
            "errors": ["InternalServerError", "LengthFinishReasonError"],
            "requests": 3 + 1,
            "usage": 9,  # of 18
            "recovery": "stop",
            "loglikelihood": [[0.0, True]] * 2,  # of every choice
        }


def test_load_generators_measure_both(tmp_path):
    need_service()
    try:
        rows = tool().generators.run(TREES[0], tmp_path, streams=8, tokens=20, rounds=1, interval=0.02)
    except tool().generators.NotToBeHad as error:
        pytest.skip(f"not to be had: {error}")
    assert len(rows) == 4
    assert min(row["requests"] for row in rows) > 8  # of 16; one on a connection that was idle may fail
