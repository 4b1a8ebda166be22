"""FastDeploy's other threads at work while steps are processed; see isolated/plugin_threads.py.

Without Paddle, so that the sanitizers see it, too.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.lib.paths import TESTS
from tests.lib.waiting import PATIENCE

SCRIPT = TESTS / "isolated" / "plugin_threads.py"


def disturbed(channel, steps, seed, timeout):
    """What the script saw; it has compared every token itself."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("msgpack")
    environment = {"PYTHONMALLOC": "debug", **os.environ}  # notices what is used after it was freed
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, channel, str(steps), str(seed)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(seen, channel, steps):
    assert seen["results"] > 2 * steps
    assert (seen["drafts"] > 0) == (channel == "spec_topk")
    assert min(seen["disturbances"].values()) > 0
    assert seen["errors"] == []
    assert seen["failed"] == 0
    assert seen["watched"] > 0
    assert seen["held"] == 0, "results or requests that nobody needs are still there"


@pytest.mark.realtime
@pytest.mark.parametrize("channel", [pytest.param("plain", marks=pytest.mark.nightly), "spec_topk"])
def test_other_threads_lose_and_break_nothing(channel):
    check(disturbed(channel, 120, 1, timeout=PATIENCE), channel, 120)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("channel", ["plain", "topk", "spec", "spec_topk"])
def test_other_threads_for_a_long_time(channel, seed):
    check(disturbed(channel, 8000, seed, timeout=900), channel, 8000)
