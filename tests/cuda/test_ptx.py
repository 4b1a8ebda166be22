"""The kernel as compilers see it: the PTX in the tree, NVRTC where it is installed, nvcc where it is."""

import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest

from tests.lib.paths import ROOT

CUDA = ROOT / "cuda"
compile_ptx = runpy.run_path(str(CUDA / "compile_ptx.py"))


def test_the_ptx_belongs_to_the_sources():
    """Its idea of ``fdk_job`` is that of the host's code, so a stale one would read wild addresses."""
    assert compile_ptx["committed_ptx"]()


def test_the_ptx_is_for_old_drivers_and_old_devices():
    ptx = (CUDA / "pack.ptx").read_text()
    assert ".version 7.8\n" in ptx  # driver 520
    assert ".target sm_70\n" in ptx
    assert re.findall(r"\.entry (\w+)", ptx) == ["fdk_pack"]
    assert re.findall(r"\.local\b", ptx) == []  # no thread needs memory of its own
    job = int(re.search(r"FDK_ASSERT\(sizeof\(fdk_job\) == (\d+)", (CUDA / "job.h").read_text())[1])
    phases = int(re.search(r"#define FDK_PHASES (\d+)", (CUDA / "pack.h").read_text())[1])
    assert ptx.count("bar.sync \t0;") == phases - 1  # a barrier between each two
    assert f".param .align 8 .b8 fdk_pack_param_0[{job}]" in ptx


def run(*command):
    """Compilers do not run with a sanitizer's library loaded into them."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_compilers_make_what_is_in_the_tree(tmp_path):
    try:
        compile_ptx["nvrtc_path"]()
        compile_ptx["ptxas_path"]()
    except ImportError as error:
        pytest.skip(str(error))
    run(sys.executable, CUDA / "compile_ptx.py", tmp_path)
    for name in "pack.ptx", "pack.cubins.zip":
        assert (tmp_path / name).read_bytes() == (CUDA / name).read_bytes(), name


def test_the_machine_code_belongs_to_the_ptx(tmp_path):
    cubins = compile_ptx["committed_cubins"]()
    assert list(cubins) == compile_ptx["ARCHITECTURES"]
    assert all(cubin.startswith(b"\x7fELF") and b"fdk_pack" in cubin for cubin in cubins.values())
    header = compile_ptx["c_header"]()
    assert header.index("{8, 0, fdk_sm_80}") < header.index("{0, 0, fdk_ptx}, {0, 0, NULL}")


def test_stale_ptx_is_refused(tmp_path):
    """A build from edited sources says what to do."""
    for folder in "cuda", "fd_postproc/headers":
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with open(tmp_path / "fd_postproc" / "headers" / "request.h", "a") as file:
        file.write("\n")
    copied = runpy.run_path(str(tmp_path / "cuda" / "compile_ptx.py"))
    with pytest.raises(RuntimeError, match=r"pip install nvidia-cuda-nvrtc-cu11==11\.8\.89.*compile_ptx"):
        copied["committed_ptx"]()
    copied["PTX"].write_text(copied["fingerprint"]() + "edited")
    with pytest.raises(RuntimeError, match=r"cubins\.zip was not made from the present pack\.ptx"):
        copied["committed_cubins"]()


@pytest.mark.nightly
def test_nvcc_compiles_it_without_spills(tmp_path):
    """A second compiler of the same source."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    warnings = ["-Xptxas", "-v", "-Werror", "all-warnings"]
    where = ["-I", ROOT, "-o", tmp_path / "out"]
    said = run(nvcc, "-arch=sm_90", "-cubin", *warnings, *where, CUDA / "pack.cu")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
