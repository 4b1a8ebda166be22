"""Memory, measured in a fresh interpreter."""

import subprocess
import sys

import pytest
import sysv_ipc

from tests.lib.paths import TESTS

SCRIPT = TESTS / "isolated" / "leak.py"


@pytest.mark.resident_memory
def test_50_000_steps_leave_memory_where_it_was_and_no_queue(queue_key):
    done = subprocess.run(
        [sys.executable, SCRIPT, "50000", str(queue_key)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256, f"grew by {done.stdout.strip()} KiB in 25,000 steps"
    with pytest.raises(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(queue_key)
