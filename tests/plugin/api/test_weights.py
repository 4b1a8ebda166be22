"""The state of the weights, compared without NumPy's own comparison."""

from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import weights
from fd_postproc.fastdeploy.api.plans import NotPlain

numpy = pytest.importorskip("numpy")


def engine_client():
    class EngineClient:
        """Restates FastDeploy's."""

        def __init__(self, value):
            self.model_weights_status_signal = SimpleNamespace(value=value)

        def check_model_weight_status(self):
            return self.model_weights_status_signal.value[0] < 0

    return EngineClient


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "bool"])
@pytest.mark.parametrize("number", [-2, -1, 0, 1, 2])
def test_the_same(number, dtype):
    cls = engine_client()
    value = numpy.array([number, -1], dtype=dtype)
    expected = bool(cls(value).check_model_weight_status())
    restore = weights.install(SimpleNamespace(EngineClient=cls))
    assert cls(value).check_model_weight_status() is expected
    restore()
    assert (
        cls.check_model_weight_status.__qualname__
        == "engine_client.<locals>.EngineClient.check_model_weight_status"
    )


def test_it_is_looked_at_each_time():
    cls = engine_client()
    weights.install(SimpleNamespace(EngineClient=cls))
    value = numpy.zeros(1, dtype="int32")
    client = cls(value)
    assert client.check_model_weight_status() is False
    value[0] = -1
    assert client.check_model_weight_status() is True
    client.model_weights_status_signal = SimpleNamespace(value=[1])  # another one, and no array
    assert client.check_model_weight_status() is False


@pytest.mark.parametrize("value", [[-1], (0,), numpy.array([[-1, 2]]), numpy.array([]), None])
def test_anything_else_is_fastdeploys(value):
    cls = engine_client()
    client = cls(value)

    def outcome():
        try:
            return bool(client.check_model_weight_status())
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    expected = outcome()
    weights.install(SimpleNamespace(EngineClient=cls))
    if value is not None and len(value) == 0:
        expected = "IndexError"
    assert outcome().__str__().startswith(str(expected))


def test_a_look_at_something_else_stays():
    class EngineClient:
        def check_model_weight_status(self):
            return self.model_weights_status_signal.value[0] < self.limit

    class Above:
        def check_model_weight_status(self):
            return self.model_weights_status_signal.value[0] > 0

    for cls, reason in ((EngineClient, "something else"), (Above, "means something else")):
        stock = cls.check_model_weight_status
        with pytest.raises(NotPlain, match=reason):
            weights.install(SimpleNamespace(EngineClient=cls))
        assert cls.check_model_weight_status is stock
