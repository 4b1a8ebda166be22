"""The driver's functions as ``cuda/driver.h`` has them, against NVIDIA's own ``cuda.h``.

NVIDIA's headers are wheels on the package index (``.ci/nightly`` fetches them); a folder with their contents,
one subfolder each, is ``FD_POSTPROC_CUDA_HEADERS``.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lib.kernel_emulation import ROOT
from tests.lib.rows import each

SOURCE = ROOT / "tests" / "lib" / "driver_prototypes.cpp"
HEADERS = sorted(Path(os.environ.get("FD_POSTPROC_CUDA_HEADERS", "/nowhere")).rglob("cuda.h"))


def functions():
    """(our name, cuda.h's plain name) of each."""
    listed = re.findall(r'X\((\w+), "(\w+)"', (ROOT / "cuda" / "driver.h").read_text())
    assert len(listed) > 20
    return [(name, re.sub(r"_v\d$", "", symbol)) for name, symbol in listed]


def compiled(header, folder, driver=None):
    """What the compiler complains of."""
    (folder / "driver_checks.h").write_text("".join(f"CHECK({a}, {b})\n" for a, b in functions()))
    (folder / "cuda").mkdir(exist_ok=True)
    (folder / "cuda" / "driver.h").write_text(driver or (ROOT / "cuda" / "driver.h").read_text())
    include = ["-I", folder, "-I", ROOT, "-I", header.parent]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-w", *include, SOURCE]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.fixture
def headers():
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    if not HEADERS:
        pytest.skip("FD_POSTPROC_CUDA_HEADERS names no folder with cuda.h in it")
    return HEADERS


def test_prototypes_symbols_and_numbers(headers, tmp_path):
    for header in headers:
        assert compiled(header, tmp_path) == "", header


@each(
    "right, wrong, said",
    [
        ('"cuCtxPushCurrent_v2"', '"cuCtxPushCurrent"', "symbol of cuCtxPushCurrent"),
        ("(fdv_event *event, unsigned flags)", "(fdv_event *event)", "prototype of cuEventCreate"),
        (
            "(void **memory, size_t size, unsigned flags)",
            "(void **memory, int size, unsigned flags)",
            "prototype of cuMemHostAlloc",
        ),
        ("(int *count)", "(int64_t *count)", "prototype of cuDeviceGetCount"),
        ("FDV_HOST_MAPPED = 2", "FDV_HOST_MAPPED = 4", "static assertion failed"),
    ],
)
def test_what_would_be_found(headers, right, wrong, said, tmp_path):
    driver = (ROOT / "cuda" / "driver.h").read_text()
    assert right in driver
    assert said in compiled(headers[0], tmp_path, driver.replace(right, wrong, 1))
