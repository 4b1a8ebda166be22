""".ci/gpu-run on the stub driver, as on a bare machine: a fresh clone, nothing installed, no network."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lib.paths import ROOT
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

RUN = ".ci/gpu-run/run.sh"


@pytest.mark.nightly
@each("version", ["{}.{}".format(*sys.version_info), "3.12"])
def test_a_dry_run(version, tmp_path):
    """All checks pass, the kernel proves itself, and gpu.json and RESULTS.md are there."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no python{version} that runs")
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a sanitizer has to be loaded first, and so has the stub")
    clone, out = tmp_path / version, tmp_path / f"results-{version}"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "CC", *(name for name in os.environ if name.startswith("PIP_")))
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PYTHON": python, "OUT": str(out)}
    prepared = subprocess.run(
        [clone / RUN, "prepare", version], env=environment, capture_output=True, text=True
    )
    if prepared.returncode:
        pytest.skip(f"the wheels cannot be had here: {prepared.stderr[-300:]}")
    no_network = ["unshare", "-n"] if subprocess.run(["unshare", "-n", "true"]).returncode == 0 else []
    done = subprocess.run(
        [*no_network, clone / RUN, "dry"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE + 300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "gpu.json").read_text())
    assert {passed for passed, _ in found["checks"].values()} == {True}, found["checks"]
    assert "in use" in found["checks"]["the kernel proves itself"][1]
    page = (out / "RESULTS.md").read_text()
    assert "Nothing failed." in page
    assert "200 messages are those of the CPU's packer" in page
