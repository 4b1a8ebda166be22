"""Scripts that run as a user who owns nothing."""

import os
import subprocess

import pytest

from tests.lib.children import python
from tests.lib.waiting import PATIENCE


def as_nobody(script, imports=""):
    """Run a script as user 65534, which owns nothing, after imports of what that user may not read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = f"import os; import fd_postproc as fp\n{imports}\nos.setgid(65534); os.setuid(65534)\n{script}"
    return subprocess.run(python(code), capture_output=True, text=True, timeout=PATIENCE, cwd="/")
