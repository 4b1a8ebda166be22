"""tools/gpu.py on the stub driver: it runs, and puts its report into the results."""

import os
import subprocess
import sys

import pytest

from tests.lib.paths import ROOT
from tests.lib.waiting import PATIENCE

SCRIPT = ROOT / "tools" / "gpu.py"


@pytest.mark.nightly
def test_the_program_on_the_stub(stub_path):
    """As on a GPU: the tests of the driver have to pass, too."""
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a sanitizer has to be loaded first, and so has the stub")
    command = [sys.executable, SCRIPT, "--dry-run", stub_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE + 90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Nothing failed.\n")
    assert "300 messages are those of the CPU's packer" in done.stdout
