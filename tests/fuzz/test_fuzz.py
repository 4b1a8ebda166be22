"""The fuzz corpus, and every crash that fuzzing has found, run once; and recordings made of anything.

``tests/fuzz/run.py`` searches for more.
"""

import os
import random
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc.recording import Recording, RecordingError, RecordingWriter
from tests.lib import fuzz_targets as fuzz
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE


def build(compiler, target, folder):
    """With sanitizers where the compiler has them; not optimised, which takes longer than all the inputs."""
    try:
        return fuzz.compiled(compiler, target, folder, "-O0", *fuzz.SANITIZERS)
    except subprocess.CalledProcessError:
        return fuzz.compiled(compiler, target, folder, "-O0")


@each("target", fuzz.TARGETS)
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


# ---- Recordings ------------------------------------------------------------------------------------------


def survives(path):
    """Read a file as a recording: its messages, or a RecordingError, and nothing else."""
    try:
        with Recording(path) as recording:
            messages = [(message.payload, message.mtype, message.time_ns) for message in recording]
            assert recording.survey().messages == len(messages)
            return messages
    except RecordingError:
        return None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A small recording: its bytes, its messages, and a place to write changed ones."""
    path = tmp_path_factory.mktemp("recordings") / "whole.fdrec"
    rng = random.Random(3)
    messages = [(rng.randbytes(size), 1 + n % 2, n) for n, size in enumerate((0, 5, 300, 2056))]
    with RecordingWriter(path, "topk") as recording:
        for message in messages:
            recording.write(*message)
    return path.read_bytes(), messages, path.with_name("changed.fdrec")


@given(noise=st.binary(max_size=300), keep=st.integers(0, 400))
def test_noise_in_a_recording(recorded, noise, keep):
    whole, messages, path = recorded
    path.write_bytes(whole[:keep] + noise)
    read = survives(path)
    assert read is None or read == messages[: len(read)]


@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=4))
def test_damage_in_a_recording(recorded, changes):
    whole, messages, path = recorded
    damaged = bytearray(whole)
    for where, by in changes:
        damaged[where % len(damaged)] ^= by
    path.write_bytes(damaged)
    read = survives(path)
    assert bytes(damaged) == whole or read is None or read == messages[: len(read)]
