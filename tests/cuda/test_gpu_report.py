"""benchmarks/gpu.py on the stub driver: it runs, decides, and puts its report into the results."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.lib.kernel_emulation import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(gpu, readable, cpu):
    name = "op, compact, numbers on the host"
    others = {"op, compact, numbers on the device": (1, 50, 5), "upstream's pattern": (100, 400, 50)}
    return {
        way: [{"batch": 1, "cols": 1, "times": {name: (3, readable[way], cpu[way]), **others}}]
        for way in gpu.WAYS
    }


@pytest.mark.parametrize(
    ("readable", "cpu", "way"),
    [
        ({"mapped": 40, "copy": 41, "watch": 39}, {"mapped": 9, "copy": 9, "watch": 9}, "mapped"),
        ({"mapped": 40, "copy": 30, "watch": 20}, {"mapped": 9, "copy": 9, "watch": 30}, "copy"),
        ({"mapped": 40, "copy": 41, "watch": 20}, {"mapped": 9, "copy": 9, "watch": 30}, "mapped"),
        ({"mapped": 40, "copy": 41, "watch": 20}, {"mapped": 9, "copy": 9, "watch": 9}, "watch"),
    ],
)
def test_which_way_is_chosen(gpu, readable, cpu, way):
    """The present one, unless another is better by 5 % at equal processor time."""
    chosen, why = gpu.choose(found(gpu, readable, cpu))
    assert chosen == way
    assert "`mapped` 1.00" in why


def test_every_unknown_has_a_line(gpu):
    times = dict.fromkeys(gpu.WAYS, 40)
    checks = {"test_a_capture_in_another_thread": (False, "failed"), "test_every_op": (True, "passed")}
    lines = dict(gpu.unknowns(checks, {"as it is": 1.5, "PTX": None}, found(gpu, times, times)))
    assert len(lines) == 13
    assert lines["Is a capture in another thread left sound?"] == "**no** (failed)"
    assert lines["And compiling it from PTX?"] == "**it is not loaded**"
    assert lines["How much sooner than by upstream's pattern?"].startswith("10.0 times")


def test_the_report_replaces_the_one_before(gpu, tmp_path):
    page = tmp_path / "RESULTS.md"
    page.write_text((ROOT / "benchmarks" / "RESULTS.md").read_text())
    gpu.write("first", page)
    gpu.write("second", page)
    text = page.read_text()
    assert "first" not in text.split("<!-- gpu -->")[1]
    assert "<!-- gpu -->\n\nsecond\n\n<!-- /gpu -->" in text


def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("There is no GPU to measure: ")


def test_timings_on_the_stub(stub_path, raised_limits):
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a sanitizer has to be loaded first, and so has the stub")
    environment = {
        **os.environ, "FD_POSTPROC_TEST_DRIVER": stub_path, "LD_PRELOAD": stub_path,
        "FD_POSTPROC_CUDA_WAY": "copy",
    }  # fmt: skip
    command = [sys.executable, "-c", ONE_CASE.format(folder=str(SCRIPT.parent))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    case = json.loads(done.stdout)
    assert len(case["times"]) == 9
    assert all(value > 0 for times in case["times"].values() for value in times[:2])


ONE_CASE = """
import json, sys
sys.path.insert(0, {folder!r})
import gpu
gpu.WARM_UP = 1
print(json.dumps(gpu.Case(3, 2).measure(3)))
"""
