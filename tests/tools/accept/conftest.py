"""FastDeploy's module, and a copy of it to be changed, for the differential trial."""

import importlib.util
import sys

import pytest

from tests.lib.other_classes import VARIANT
from tests.lib.quiet import Double


@pytest.fixture
def real():
    """FastDeploy's module, as the engine has it."""
    return Double().output__token_processor


@pytest.fixture
def variant(real, monkeypatch):
    """The same text loaded once more, to be changed by the test."""
    spec = importlib.util.spec_from_file_location(VARIANT, real.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, VARIANT, module)
    spec.loader.exec_module(module)
    return module
