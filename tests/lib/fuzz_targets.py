"""The fuzz targets of ``tests/fuzz``: compiling them, their corpus, and the crashes that were found."""

import subprocess
import zipfile
from pathlib import Path

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
ROOT = FUZZ.parent.parent
TARGETS = {"gate": 4096, "pack": 512}
"""Name of each target, and its longest input."""
WARNINGS = ["-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def corpus(target, folder):
    """Unpack a target's corpus; the files."""
    with zipfile.ZipFile(FUZZ / "corpus" / f"{target}.zip") as archive:
        archive.extractall(folder)
    return sorted(Path(folder).iterdir())


def crashes(target):
    return sorted((FUZZ / "crashes").glob(f"{target}-*"))


def compiled(compiler, target, folder, *flags):
    """A target as a program."""
    program = Path(folder) / target
    sources = [FUZZ / f"{target}.c"] + ([] if "-fsanitize=fuzzer" in flags else [FUZZ / "replay.c"])
    command = [compiler, "-g", "-O1", *WARNINGS, "-Werror", *flags, f"-I{ROOT}", *sources, "-o", program]
    subprocess.run(command, check=True)
    return program


def pack(target, folder):
    """Write a corpus, so that the same inputs give the same file."""
    with zipfile.ZipFile(
        FUZZ / "corpus" / f"{target}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9
    ) as archive:
        for path in sorted(Path(folder).iterdir()):
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
