"""Tensors of each framework at hand, made from NumPy arrays."""

import importlib
import importlib.util
import warnings

import pytest


def _quiet_import(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's import tells that ccache is missing
        return importlib.import_module(name)


class Numpy:
    def tensor(self, array):
        return array

    def array(self, tensor):
        return tensor


class Paddle:
    def __init__(self):
        self.paddle = _quiet_import("paddle")

    def tensor(self, array):
        return self.paddle.to_tensor(array, place=self.paddle.CPUPlace())

    def array(self, tensor):
        return tensor.numpy()


class Torch(Paddle):
    def __init__(self):
        self.torch = _quiet_import("torch")

    def tensor(self, array):
        return self.torch.from_numpy(array)


FRAMEWORKS = {
    "numpy": pytest.param(Numpy, id="numpy"),
    "paddle": pytest.param(Paddle, marks=pytest.mark.framework, id="paddle"),
    "torch": pytest.param(Torch, marks=pytest.mark.framework, id="torch"),
}


def made(framework):
    """An instance; skips the test where the framework is not installed."""
    if framework is not Numpy:
        name = framework.__name__.lower()
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    return framework()
