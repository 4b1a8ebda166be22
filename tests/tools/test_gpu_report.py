"""tools/gpu.py on the stub driver: it runs, and puts its report into the results."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.lib.kernel_emulation import ROOT
from tests.lib.waiting import PATIENCE

SCRIPT = ROOT / "tools" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOUND = [
    {
        "batch": 1,
        "cols": 1,
        "times": {
            "op, compact, numbers on the host": (3, 40, 40, 20),
            "op, compact, numbers on the device": (1, 50, 5, 20),
            "op, packed, numbers on the device": (1, 50, 5, 10),
            "upstream's pattern": (100, 400, 50, 90),
        },
        "loop": {},
        "sizes": {"compact": 1000, "packed": 200_000},
        "bus": 50.0,
    }
]


def test_every_unknown_has_a_line(gpu):
    checks = {"test_a_capture_in_another_thread": (False, "failed"), "test_every_op": (True, "passed")}
    lines = dict(gpu.unknowns(checks, {"as it is": 1.5, "PTX": None}, FOUND))
    assert len(lines) == 18
    assert lines["Is a capture in another thread left sound?"] == "**no** (failed)"
    assert lines["And compiling it from PTX?"] == "**it is not loaded**"
    assert lines["How much sooner than by upstream's pattern?"].startswith("10.0 times")
    assert lines["How much of the bus's speed does a large message reach?"] == "20.0 of 50.0 GB/s, 40%"


def test_the_report_replaces_the_one_before(gpu, tmp_path):
    page = tmp_path / "RESULTS.md"
    page.write_text((ROOT / "benchmarks" / "RESULTS.md").read_text())
    data = {"machine": "first", "checks": {"a": (False, "why")}, "loads": {}, "times": []}
    gpu.write(data, tmp_path)
    gpu.write({**data, "machine": "second"}, tmp_path)
    text = page.read_text().split("<!-- gpu -->")[1].split("<!-- /gpu -->")[0]
    assert "first" not in text
    assert text.startswith("\n\nWhat failed:\n\n* a: why\n\nsecond\n")
    assert json.loads((tmp_path / "gpu.json").read_text())["machine"] == "second"


def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("There is no GPU to measure: ")


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
