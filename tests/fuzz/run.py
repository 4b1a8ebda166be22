"""Fuzz the C headers with libFuzzer, from the corpus in this folder.

    python tests/fuzz/run.py --minutes 10           each target in turn; needs clang and libclang-rt
    python tests/fuzz/run.py --minutes 10 --keep    and put what was newly reached into the corpus

A crash is written into ``crashes/`` as TARGET-NAME; ``test_fuzz.py`` runs every file there, and the corpus.
  To see one again: ``python tests/fuzz/run.py crashes/TARGET-NAME``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lib.fuzz_targets import FUZZ, SANITIZERS, TARGETS, compiled, corpus, pack


def fuzz(target, clang, seconds, keep):
    with tempfile.TemporaryDirectory() as folder:
        known, merged = Path(folder) / "known", Path(folder) / "merged"
        merged.mkdir()
        corpus(target, known)
        program = compiled(clang, target, folder, "-fsanitize=fuzzer", *SANITIZERS)
        options = [f"-max_len={TARGETS[target]}", "-print_final_stats=1"]
        where = [f"-max_total_time={seconds}", f"-artifact_prefix={FUZZ / 'crashes'}/{target}-", known]
        found = subprocess.run([program, *options, *where])
        if found.returncode == 0 and keep:
            subprocess.run([program, *options, "-merge=1", merged, known], check=True, capture_output=True)
            for seed in known.glob("seed*"):  # others reach the same lines; a bug may show here only
                shutil.copy(seed, merged)
            pack(target, merged)
            print(f"{target}: {len(list(merged.iterdir()))} inputs kept")
        return found.returncode


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="*", type=Path, help="run these once instead")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--clang", default=os.environ.get("CLANG") or _clang())
    args = parser.parse_args()
    if not args.clang:
        sys.exit("no clang found: apt-get install clang libclang-rt-14-dev (or name one: CLANG=...)")
    for path in args.inputs:
        with tempfile.TemporaryDirectory() as folder:
            target = path.name.partition("-")[0]
            if target not in TARGETS:
                sys.exit(f"{path}: the name does not begin with a target's ({', '.join(TARGETS)})")
            program = compiled(args.clang, target, folder, *SANITIZERS)
            if status := subprocess.run([program, path]).returncode:
                sys.exit(status)
    if not args.inputs:
        for target in args.target or TARGETS:
            if status := fuzz(target, args.clang, round(args.minutes * 60), args.keep):
                sys.exit(status)


def _clang():
    names = ["clang", *(f"clang-{version}" for version in range(22, 13, -1))]
    return next(filter(None, map(shutil.which, names)), None)


if __name__ == "__main__":
    main()
