"""The documents' examples run as they are printed, each by itself, in an empty folder."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from tests.lib.page_commands import ROOT, as_a_user
from tests.lib.page_examples import examples, run_example
from tests.lib.rows import each


@pytest.mark.nightly
@each("name, block", examples())
def test_every_example_runs_by_itself(name, block, own_namespace, tmp_path):
    if not own_namespace:
        pytest.skip(
            "the examples use queue ids that others may use, too: they need an IPC namespace of their own"
        )
    run_example(block, tmp_path)


def test_examples_use_the_installed_package(tmp_path):
    """Not the checkout's sources, unless it is installed from there with ``pip install -e``."""
    found = importlib.metadata.distributions(name="fd_postproc")  # a build leaves one in the checkout, too
    origins = [json.loads(one.read_text("direct_url.json") or "{}") for one in found]
    editable = any(origin.get("dir_info", {}).get("editable", False) for origin in origins)
    (tmp_path / "where.py").write_text("import fd_postproc; print(fd_postproc.__file__)")
    command = [sys.executable, "where.py"]
    where = subprocess.run(
        command, cwd=tmp_path, env=as_a_user(), check=True, stdout=subprocess.PIPE, text=True
    )
    assert (ROOT.joinpath(where.stdout.strip()) == ROOT / "fd_postproc" / "__init__.py") == editable
