"""Long runs in fresh processes: two that are disturbed (isolated/soak.py), and one whose memory stays."""

import json
import subprocess
import sys

import pytest
import sysv_ipc

from tests.lib.paths import TESTS

ISOLATED = TESTS / "isolated"


def soak(steps, kills, key, timeout):
    sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600)
    arguments = {"--steps": steps, "--kills": kills, "--key": key}
    command = [
        sys.executable,
        ISOLATED / "soak.py",
        *(str(word) for pair in arguments.items() for word in pair),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["received"] + result["lost"] == steps
    assert result["lost"] <= kills
    assert result["fragments"] > 0
    return result


@pytest.mark.realtime
def test_no_step_is_lost_doubled_or_mixed(default_limits, queue_key):
    soak(2_500, 3, queue_key, 120)


@pytest.mark.nightly
def test_a_million_steps(default_limits, queue_key):
    result = soak(1_000_000, 100, queue_key, 3600)
    assert result["incomplete"] > 0, "no kill ever hit the middle of a frame"


@pytest.mark.resident_memory
def test_50_000_steps_leave_memory_where_it_was_and_no_queue(queue_key):
    done = subprocess.run(
        [sys.executable, ISOLATED / "leak.py", "50000", str(queue_key)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256, f"grew by {done.stdout.strip()} KiB in 25,000 steps"
    with pytest.raises(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(queue_key)
