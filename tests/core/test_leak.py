"""Memory stays where it was: many steps in a fresh process (isolated/leak.py)."""

import subprocess
import sys

import pytest
import sysv_ipc

from tests.lib.paths import TESTS
from tests.lib.waiting import PATIENCE


@pytest.mark.resident_memory
def test_10_000_steps_leave_memory_where_it_was_and_no_queue(queue_key):
    command = [sys.executable, TESTS / "isolated" / "leak.py", "10000", str(queue_key)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48, f"grew by {done.stdout.strip()} KiB in 5,000 steps"
    with pytest.raises(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(queue_key)
