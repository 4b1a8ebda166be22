"""Imports of frameworks, which warn about things that are none of a test's business."""

import importlib
import importlib.util
import sys
import warnings

import pytest


def imported(name):
    """The module `name`, which may load Paddle; skips the test where Paddle is not installed."""
    if "paddle" in sys.modules and name in sys.modules:
        return sys.modules[name]
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("paddle is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")
    return importlib.import_module(name)


class Double:
    """The FastDeploy double's modules: `engine__request` is fastdeploy.engine.request."""

    def __getattr__(self, name):
        return imported(f"fastdeploy.{name.replace('__', '.')}")
