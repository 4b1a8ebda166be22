"""Try an installed wheel: every extension is imported, and a step survives its way through bytes."""

import importlib.metadata
import platform
from pathlib import Path

import fd_postproc
import fd_postproc.core._save
import fd_postproc.fastdeploy.api.chunks._chunks
import fd_postproc.fastdeploy.engine.results._results

assert fd_postproc.__version__ == importlib.metadata.version("fd_postproc")
step = fd_postproc.Step.from_arrays("spec", [2, -9], [5, 6])
assert fd_postproc.decode(fd_postproc.encode(step), "spec") == step
# The compiler of the wheels is another one than the tests': it has to find the instruction, too.
if platform.machine() == "x86_64" and " sse4_2 " in Path("/proc/cpuinfo").read_text():
    assert fd_postproc._core._sums_by_instruction(), "checksums are made by tables: six times as slow"
print(f"every extension is imported; {step!r} is the same after encode and decode")
