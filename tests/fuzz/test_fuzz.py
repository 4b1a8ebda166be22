"""The fuzz corpus, and every crash that fuzzing has found, run once.

``tests/fuzz/run.py`` searches for more.
"""

import os
import shutil
import subprocess

import pytest

from tests.lib import fuzz_targets as fuzz
from tests.lib.waiting import PATIENCE


def build(compiler, target, folder):
    """With sanitizers where the compiler has them; a trap in place of words, and nothing is optimised:

    to compile these takes longer than all the inputs.
    """
    try:
        trap = "-fsanitize-undefined-trap-on-error"
        return fuzz.compiled(compiler, target, folder, "-O0", *fuzz.SANITIZERS, trap)
    except subprocess.CalledProcessError:
        return fuzz.compiled(compiler, target, folder, "-O0")


@pytest.mark.parametrize("target", ["gate", pytest.param("pack", marks=pytest.mark.nightly)])
def test_corpus_and_former_crashes(target, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = build(compiler, target, tmp_path)
    inputs = fuzz.corpus(target, tmp_path / "corpus") + fuzz.crashes(target)
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [program, *inputs], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{len(inputs)} inputs\n"
    assert len(inputs) > 50
