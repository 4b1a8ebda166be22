"""The status of the weights: what FastDeploy's own method says, or raises, of the same shared memory."""

from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import numpy as np
import pytest

from fd_postproc.fastdeploy.api import weight_status
from tests.lib.rows import each


class EngineClient:
    def __init__(self, value):
        self.model_weights_status_signal = SimpleNamespace(value=value)

    def check_model_weight_status(self):
        return self.model_weights_status_signal.value[0] < 0


@pytest.fixture
def both():
    """Our method in a copy of FastDeploy's class, and FastDeploy's."""
    cls = type("EngineClient", (EngineClient,), dict(vars(EngineClient)))
    stock = vars(cls)[weight_status.METHOD]
    restore = weight_status.install(SimpleNamespace(EngineClient=cls))
    yield cls.check_model_weight_status, EngineClient.check_model_weight_status
    restore()
    assert vars(cls)[weight_status.METHOD] is stock


def said(method, client):
    try:
        return method(client)
    except Exception as error:
        return type(error), str(error)


def test_what_another_process_writes_is_seen(both):
    memory = SharedMemory(create=True, size=4)
    other = SharedMemory(name=memory.name)
    try:
        client = EngineClient(np.ndarray([1], np.int32, buffer=memory.buf))
        for status in (0, -1, -2, 1, -(1 << 31), 0):
            np.ndarray([1], np.int32, buffer=other.buf)[0] = status
            told = [said(method, client) for method in both]
            assert told[0] is told[1]
            assert type(told[0]) is np.bool_
            assert told[0] == (status < 0)
    finally:
        del client
        both[0](EngineClient(np.zeros(1, np.int32)))  # it looks at another array from now on
        other.close()
        memory.close()
        memory.unlink()


VALUES = {
    "three": np.array([-1, 0, 0]),
    "64 bits": np.array([-(1 << 40)]),
    "no sign": np.array([1 << 31], np.uint32),
    "the other byte order": np.array([-1], ">i4"),
    "every other item": np.arange(-3, 3)[::2],
    "a float": np.array([-0.5]),
    "two dimensions": np.array([[-1, 2]]),
    "no dimension": np.array(-1),
    "nothing": np.array([], np.int32),
    "none": None,
    "a list": [-1],
    "texts": np.array(["a"]),
}


@each("name", VALUES)
def test_any_other_value_says_or_raises_the_same(both, name):
    for client in (EngineClient(VALUES[name]), EngineClient(np.array([-1], np.int32)), SimpleNamespace()):
        told, right = (said(method, client) for method in both)
        assert repr(told) == repr(right)
