"""Two processes for a long time, disturbed; see isolated/soak.py."""

import json
import subprocess
import sys

import pytest
import sysv_ipc

from tests.lib.paths import TESTS

SCRIPT = TESTS / "isolated" / "soak.py"


def soak(steps, kills, key, timeout):
    sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600)
    arguments = {"--steps": steps, "--kills": kills, "--key": key}
    command = [sys.executable, SCRIPT, *(str(word) for pair in arguments.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["received"] + result["lost"] == steps
    assert result["lost"] <= kills
    assert result["fragments"] > 0
    return result


def test_no_step_is_lost_doubled_or_mixed(default_limits, queue_key):
    soak(2_500, 3, queue_key, 120)


@pytest.mark.nightly
def test_a_million_steps(default_limits, queue_key):
    result = soak(1_000_000, 100, queue_key, 3600)
    assert result["incomplete"] > 0, "no kill ever hit the middle of a frame"
