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

from tests.lib.paths import ROOT

SOURCE = ROOT / "tests" / "lib" / "driver_prototypes.cpp"
HEADERS = sorted(Path(os.environ.get("FD_POSTPROC_CUDA_HEADERS", "/nowhere")).rglob("cuda.h"))


def functions():
    """(our name, cuda.h's plain name) of each."""
    listed = re.findall(r'X\((\w+), "(\w+)"', (ROOT / "cuda" / "driver.h").read_text())
    assert len(listed) > 20
    return [(name, re.sub(r"_v\d$", "", symbol)) for name, symbol in listed]


def compiled(header, folder):
    """What the compiler complains of."""
    (folder / "driver_checks.h").write_text("".join(f"CHECK({a}, {b})\n" for a, b in functions()))
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
