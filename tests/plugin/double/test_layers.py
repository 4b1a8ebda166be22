"""FD_POSTPROC_FASTDEPLOY=PATH: modules of a source tree over the double's."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.children import python
from tests.lib.nursery import with_paddle
from tests.lib.paths import TESTS
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework

TOLD = """
import json
from fastdeploy.output import token_processor
from fastdeploy.engine import common_engine, request
from fastdeploy.worker import output
from tests import restated
print(json.dumps({
    "files": [module.__file__ for module in (token_processor, request, output, common_engine)],
    "restated": issubclass(restated.bind(token_processor), restated.CommonStep),
}))
"""


def environment(tree):
    return {**os.environ, "FD_POSTPROC_FASTDEPLOY": str(tree), "FD_PLUGINS": "nobody"}


def run_with(tree, code):
    return subprocess.run(python(code), env=environment(tree), cwd="/", capture_output=True, text=True)


def test_a_source_tree_is_layered_over_the_double(tmp_path):
    imported("paddle")
    package = tmp_path / "fastdeploy"
    double = TESTS / "fastdeploy_double" / "fastdeploy"
    for name in "output/token_processor.py", "engine/request.py", "worker/output.py":
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text((double / name).read_text())
    for tree in tmp_path, package:
        told = with_paddle(TOLD, environment(tree))
        assert [Path(file).is_relative_to(package) for file in told["files"]] == [True, True, True, False]
        assert told["restated"]
    told = run_with(package, "import sys, fastdeploy; sys.exit('paddle' in sys.modules)")
    assert told.returncode == 0, "importing the package loads no framework"


def test_a_tree_that_lacks_a_file_is_refused_by_name(tmp_path):
    told = run_with(tmp_path, "from fastdeploy.output import token_processor")
    assert told.returncode != 0
    assert f"FD_POSTPROC_FASTDEPLOY={tmp_path}" in told.stderr
    assert "token_processor.py" in told.stderr
