"""FD_POSTPROC_FASTDEPLOY=PATH: modules of a source tree over the double's."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.children import python
from tests.lib.paths import TESTS
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework

TOLD = """
import sys
from fastdeploy.output import token_processor
from fastdeploy.engine import common_engine, request
from fastdeploy.worker import output
print(*(module.__file__ for module in (token_processor, request, output, common_engine)), sep="\\n")
"""


def run_with(tree):
    environment = {**os.environ, "FD_POSTPROC_FASTDEPLOY": str(tree), "FD_PLUGINS": "nobody"}
    return subprocess.run(python(TOLD), env=environment, cwd="/", capture_output=True, text=True)


def test_a_source_tree_is_layered_over_the_double_or_refused_by_name(tmp_path):
    imported("paddle")
    package, double = tmp_path / "fastdeploy", TESTS / "fastdeploy_double" / "fastdeploy"
    refused = run_with(tmp_path)
    assert refused.returncode != 0
    assert f"FD_POSTPROC_FASTDEPLOY={tmp_path}: no {package}/output/token_processor.py" in refused.stderr
    for name in "output/token_processor.py", "engine/request.py", "worker/output.py":
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text((double / name).read_text())
    for tree in tmp_path, package:
        told = run_with(tree)
        layered = [Path(file).is_relative_to(package) for file in told.stdout.split()]
        assert layered == [True, True, True, False], told.stderr
