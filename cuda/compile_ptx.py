"""Compile the kernel to PTX: ``python cuda/compile_ptx.py [FILE]`` writes ``cuda/pack.ptx``, or FILE.

Needed only after a change of ``pack.cu``, ``pack.h`` or ``_request.h``.  It takes NVRTC 11.8
(``pip install nvidia-cuda-nvrtc-cu11==11.8.89``), so that drivers from 520 up accept the PTX; a newer
compiler's would ask for a newer driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
KERNEL = FOLDER / "pack.cu"
HEADERS = [FOLDER / "pack.h", FOLDER.parent / "fd_postproc" / "_request.h"]
PTX = FOLDER / "pack.ptx"
OPTIONS = ["--std=c++17", "--gpu-architecture=compute_70"]
PACKAGE = "nvidia-cuda-nvrtc-cu11==11.8.89"
LIBRARY = "libnvrtc.so.11.2"


def fingerprint() -> str:
    """The line that a PTX of the present sources begins with."""
    digest = hashlib.sha256()
    for path in [KERNEL, *HEADERS]:
        digest.update(path.read_bytes())
    return f"// {PACKAGE}, of sources with SHA-256 {digest.hexdigest()}\n"


def committed_ptx() -> str:
    """The PTX in the tree.

    Raises
    ------
    RuntimeError
        If it is not that of the present sources: its idea of ``fdk_job`` may be another one.
    """
    ptx = PTX.read_text()
    if not ptx.startswith(fingerprint()):
        raise RuntimeError(
            f"{PTX} was not made from the present kernel sources: pip install {PACKAGE}, "
            f"then python {FOLDER / 'compile_ptx.py'}"
        )
    return ptx


def c_header() -> str:
    """C source of ``fdk_images``: what `fdr_load` may load, the best first."""
    ptx = committed_ptx()
    lines = [line.replace("\\", "\\\\").replace('"', '\\"') for line in ptx.splitlines()]
    text = "".join(f'    "{line}\\n"\n' for line in lines)
    return f"""static const char fdk_ptx[] =
{text};
static const fdr_image fdk_images[] = {{{{0, 0, fdk_ptx}}, {{0, 0, NULL}}}};
"""


def nvrtc_path() -> Path:
    """Where the PyPI package has put NVRTC.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec and spec.submodule_search_locations) or []:
        path = Path(parent) / "cuda_nvrtc" / "lib" / LIBRARY
        if path.exists():
            return path
    raise ImportError(f"{LIBRARY} not found: pip install {PACKAGE}")


def compile_ptx() -> str:
    """Compile the kernel; the text that belongs into ``pack.ptx``.

    Raises
    ------
    ImportError
        If NVRTC is not installed.
    RuntimeError
        If it does not accept the sources; the text is its log.
    """
    nvrtc = ctypes.CDLL(str(nvrtc_path()))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()

    def call(name: str, *args: object) -> None:
        status = getattr(nvrtc, name)(*args)
        if status != 0:
            raise RuntimeError(
                f"{name}: {nvrtc.nvrtcGetErrorString(status).decode()}\n{text_of('ProgramLog')}"
            )

    def text_of(what: str) -> str:
        size = ctypes.c_size_t()
        if getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != 0:
            return ""
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    def strings(values: list[str]) -> ctypes.Array[ctypes.c_char_p]:
        return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))

    call(
        "nvrtcCreateProgram",
        ctypes.byref(program),
        KERNEL.read_bytes(),
        KERNEL.name.encode(),
        len(HEADERS),
        strings([path.read_text() for path in HEADERS]),
        strings([path.name for path in HEADERS]),
    )
    try:
        call("nvrtcCompileProgram", program, len(OPTIONS), strings(OPTIONS))
        return fingerprint() + text_of("PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PTX]).write_text(compile_ptx())
