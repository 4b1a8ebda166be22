"""Save ops with tensors on a CUDA device: whether the kernel is used at once."""

import pytest

from fd_postproc.ops import proof
from fd_postproc.ops.device import saves


@pytest.fixture(autouse=True)
def mode(monkeypatch):
    """A function that begins anew with a value of FD_POSTPROC_CUDA; until it is called, that is 1."""

    def mode(value):
        monkeypatch.setenv("FD_POSTPROC_CUDA", value)
        monkeypatch.setattr(saves, "proof", proof.Proof())
        return saves.proof

    mode("1")
    return mode
