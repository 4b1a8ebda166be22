"""Compile the kernel: ``python cuda/compile_ptx.py [FOLDER]`` writes ``pack.ptx`` and ``pack.cubins.zip``.

FOLDER is this file's unless given.  Needed after a change of ``pack.cu`` or of a header that it includes.
It takes NVRTC and ptxas of CUDA 11.8 (``pip install nvidia-cuda-nvrtc-cu11==11.8.89
nvidia-cuda-nvcc-cu11==11.8.89``), so that drivers from 520 up accept the result; a newer compiler's would ask
for a newer driver.

The PTX runs on every device, once the driver has compiled it, which takes it up to a third of a second.  The
machine code of the archive saves that where it fits: on devices of its major compute capability, from its
minor up.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
KERNEL = FOLDER / "pack.cu"
HEADERS = [
    *(FOLDER / name for name in ("pack.h", "emit.h", "scan.h", "job.h")),
    FOLDER.parent / "fd_postproc" / "headers" / "request.h",
]
PTX = FOLDER / "pack.ptx"
OPTIONS = ["--std=c++17", "--gpu-architecture=compute_70"]
CUBINS = FOLDER / "pack.cubins.zip"
ARCHITECTURES = ["sm_70", "sm_80", "sm_90"]
"""Volta and Turing, Ampere and Ada, Hopper: all that ptxas 11.8 knows.  Later ones take the PTX."""
PACKAGE = "nvidia-cuda-nvrtc-cu11==11.8.89"
PTXAS_PACKAGE = "nvidia-cuda-nvcc-cu11==11.8.89"
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


def committed_cubins() -> dict[str, bytes]:
    """Machine code in the tree, by architecture.

    Raises
    ------
    RuntimeError
        If it was not made from the PTX in the tree.
    """
    with zipfile.ZipFile(CUBINS) as archive:
        if archive.comment != _digest(committed_ptx()):
            raise RuntimeError(
                f"{CUBINS} was not made from the present {PTX.name}: pip install {PACKAGE} {PTXAS_PACKAGE}, "
                f"then python {FOLDER / 'compile_ptx.py'}"
            )
        return {name: archive.read(name) for name in archive.namelist()}


def c_header() -> str:
    """C source of ``fdk_images``: what `fdr_load` may load, the best first."""
    ptx = committed_ptx()
    lines = [line.replace("\\", "\\\\").replace('"', '\\"') for line in ptx.splitlines()]
    text = "".join(f'    "{line}\\n"\n' for line in lines)
    source, images = [f"static const char fdk_ptx[] =\n{text};\n"], []
    for name, cubin in committed_cubins().items():
        numbers = ",".join(map(str, cubin))
        source.append(f"static const uint8_t fdk_{name}[] __attribute__((aligned(64))) = {{{numbers}}};\n")
        images.append(f"{{{name[3]}, {name[4]}, fdk_{name}}}, ")
    images += ["{0, 0, fdk_ptx}, {0, 0, NULL}"]
    return "".join([*source, f"static const fdr_image fdk_images[] = {{{''.join(images)}}};\n"])


def nvrtc_path() -> Path:
    """Where the PyPI package has put NVRTC.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    return _installed(Path("cuda_nvrtc") / "lib" / LIBRARY, PACKAGE)


def ptxas_path() -> Path:
    """Where the PyPI package has put ptxas.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    return _installed(Path("cuda_nvcc") / "bin" / "ptxas", PTXAS_PACKAGE)


def _installed(what: Path, package: str) -> Path:
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec and spec.submodule_search_locations) or []:
        path = Path(parent) / what
        if path.exists():
            return path
    raise ImportError(f"{what.name} not found: pip install {package}")


def _digest(ptx: str) -> bytes:
    return hashlib.sha256(ptx.encode()).hexdigest().encode()


def write_cubins(ptx: str, archive: Path) -> None:
    """Assemble the PTX for all architectures; the same PTX gives the same archive."""
    ptxas = ptxas_path()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.comment = _digest(ptx)
        source, cubin = Path(folder) / "pack.ptx", Path(folder) / "pack.cubin"
        source.write_text(ptx)
        for name in ARCHITECTURES:
            subprocess.run([ptxas, f"-arch={name}", source.name, "-o", cubin.name], cwd=folder, check=True)
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(info, cubin.read_bytes())


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
        strings([str(path.relative_to(FOLDER.parent)) for path in HEADERS]),
    )
    try:
        call("nvrtcCompileProgram", program, len(OPTIONS), strings(OPTIONS))
        return fingerprint() + text_of("PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def main(folder: Path) -> None:
    """Write both files."""
    ptx = compile_ptx()
    (folder / PTX.name).write_text(ptx)
    write_cubins(ptx, folder / CUBINS.name)


if __name__ == "__main__":
    main(Path(*sys.argv[1:] or [FOLDER]))
