"""Save ops with tensors on a CUDA device, on a stub driver (lib/stub_cuda.py): streams, and processes."""

import ctypes
import os
import sys
import types

import pytest

from tests.lib.device_saves import PRELUDE
from tests.lib.nursery import nursery
from tests.lib.stub_cuda import Exchange, Other


@pytest.fixture
def streams(stub, monkeypatch):
    """A function that makes a new stream the current one of every framework, and returns its handle."""

    def current(device=0):
        return types.SimpleNamespace(cuda_stream=streams.now)

    core = types.SimpleNamespace(_get_current_stream=current)
    cuda = types.SimpleNamespace(current_stream=current)
    fakes = {
        "paddle": types.SimpleNamespace(base=types.SimpleNamespace(core=core)),
        "torch": types.SimpleNamespace(cuda=cuda),
        "cupy": types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                get_current_stream=lambda device=0: types.SimpleNamespace(
                    ptr=streams.of_device.get(device, streams.now)
                )
            )
        ),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(Other, "stream", 0)
    monkeypatch.setattr(Exchange, "stream", 0)

    def streams():
        streams.now = Other.stream = Exchange.stream = stub.stub_stream()
        return streams.now

    streams.now = 0
    streams.of_device = {}  # streams of CuPy's that are not that of all
    return streams


@pytest.fixture
def slow(stub):
    """A function that makes everything on the device take so many milliseconds; -1: until called again."""
    return lambda ms: stub.stub_delay(ctypes.c_int64(ms * 1000))


@pytest.fixture
def environment(stub_path, ops_queue):
    return {**os.environ, "STUB_CUDA": stub_path}


@pytest.fixture
def run(environment):
    """Run code after PRELUDE in another process; what it printed.  ``run.stderr``: what it complained of."""

    def run(code, status=0, **variables):
        done = nursery().run(PRELUDE + code, env={**environment, **variables})
        run.stderr = done.stderr
        assert done.returncode == status, done.stderr
        return done.stdout

    return run
