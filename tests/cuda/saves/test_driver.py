"""Drivers that are missing, too old, or fail."""

import subprocess

import pytest

from tests.lib.c_library import compiler
from tests.lib.children import python
from tests.lib.device_saves import AT_ONCE, received
from tests.lib.nursery import nursery
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

WHY = "print(fp.cuda_available(), fp.why_no_cuda())"


@each(
    "variables, words",
    [
        ({}, "True "),
        (
            {"STUB_CUDA_VERSION": "11070"},
            "False the driver is for CUDA 11.7; the save kernels need CUDA 11.8",
        ),
        ({"STUB_CUDA_DEVICES": "0"}, "False a CUDA driver but no device"),
        ({"STUB_CUDA_FAIL": "cuInit:0:999"}, "False cuInit: CUDA_ERROR_STUB (999): as the test wants it"),
        ({"STUB_CUDA_FAIL": "cuDeviceGetCount:0:100"}, "False a CUDA driver but no device"),
        ({"STUB_CUDA_FAIL": "cuDriverGetVersion:0:1"}, "False cuDriverGetVersion: CUDA_ERROR_STUB (1)"),
    ],
)
def test_why_there_is_no_cuda(run, variables, words):
    assert run(WHY, **variables).startswith(words)


def test_no_driver_at_all(environment):
    """As on a machine without a GPU; nothing but the package is loaded by its import."""
    code = (
        "import sys, fd_postproc as fp\n"
        "assert 'fd_postproc.core._save' not in sys.modules\n"
        "print(fp.cuda_available(), fp.why_no_cuda())\n"
        "from fd_postproc.core import _save\nprint(_save.driver_version(), _save.pending())"
    )
    done = subprocess.run(python(code), env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if "True" in done.stdout:
        pytest.skip("there is a driver and a device")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False ")
    assert "CUDA driver" in done.stdout


def test_an_old_driver_that_lacks_a_function(run, tmp_path, environment):
    source = tmp_path / "empty.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    built = tmp_path / "libcuda.so.1"
    subprocess.run(
        [*compiler(), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", built], check=True
    )
    code = f"import ctypes; ctypes.CDLL({str(built)!r})\nimport fd_postproc as fp\n{WHY}"
    done = nursery().run(code, env=environment)
    assert "the CUDA driver has no cuDriverGetVersion: it is too old" in done.stdout, done.stderr


def test_without_the_extension(run):
    code = "sys.modules['fd_postproc.core._save'] = None\n" + WHY + "\nprint(error_of(save, 1))"
    told = run(code).splitlines()
    assert told[0].startswith("False the extension fd_postproc.core._save does not load")
    assert told[1].startswith("CudaError: tensors on a CUDA device need the extension")


@each(
    "variables, told",
    [
        ({"STUB_CUDA_MAJOR": "6"}, "CudaError: CUDA device 0 has compute capability 6.0"),
        ({"STUB_CUDA_VERSION": "11070"}, "CudaError: tensors on a CUDA device cannot be saved here: "),
        *(
            ({"FD_POSTPROC_CUDA_BUFFERS": text}, f"ValueError: FD_POSTPROC_CUDA_BUFFERS={text!r} is not a ")
            for text in ("2", "65", "many")
        ),
    ],
)
def test_why_a_save_is_refused(variables, told, run):
    assert run("print(error_of(save, 1))", **variables).startswith(told)


@each("call", AT_ONCE)
def test_a_driver_call_that_fails(call, run):
    """The call raises, nothing was saved, and the next one works."""
    told = run(
        "print(error_of(save, 1), stub.stub_depth())\n"
        "save(2)\n"
        "print(ops.flush(60), ops.save_stats()['frames'])",
        STUB_CUDA_FAIL=f"{call}:0:2",
        STUB_CUDA_MAJOR="12",  # for which there is no machine code, so that there is no second try
    )
    first, second = told.splitlines()
    assert first.startswith(f"CudaError: {call}")
    assert "(2): as the test wants it 0" in first
    assert second == "True 1"
    assert received(1) == [2]


@each("failure", ["cuEventSynchronize:1:700", "cuEventRecord:1:700"])
def test_an_event_that_fails(failure, run):
    """Nobody knows what the device still writes: this process saves no more, and does not hang."""
    code = """
save(1)
ops.flush(60)
kept = [error_of(save, n) for n in range(2, 6)]
kept += [error_of(ops.flush, 10)]
time.sleep(0.1)
kept += [error_of(save, 7)]
for text in kept: print(text)
print(ops.save_stats()["lost"], ops.save_stats()["frames"])
"""
    told = run(code, STUB_CUDA_FAIL=failure, STUB_CUDA_DELAY_US="20000").splitlines()
    call = failure.split(":")[0]
    assert any(call in text and "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text for text in told[:5])
    assert call in told[5], "the device was hurt meanwhile"
    assert told[6] == f"{told[:4].count('none')} 1"  # all that were accepted are lost
    assert received(1) == [1]
