"""This module reads the status of the model's weights in shared memory, which every chunk asks for.

FastDeploy takes an item of a NumPy array and compares it by NumPy, which takes a dozen times as long.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ..gate import replacements

METHOD = "check_model_weight_status"


def install(module: Any) -> Callable[[], None]:
    """Install the read in ``engine_client``; return a function that restores FastDeploy's own."""
    cls = module.EngineClient
    return replacements.install("api weights", (cls, METHOD, _replacement(vars(cls)[METHOD])))


def _replacement(stock: Any) -> Callable[[Any], Any]:
    numpy = importlib.import_module("numpy")
    is_below, is_not = numpy.True_, numpy.False_  # what NumPy's comparison gives
    seen: Any = object()  # the array that `view` shows
    view: Any = None

    @functools.wraps(stock)
    def check_model_weight_status(client: Any) -> Any:
        nonlocal seen, view
        value = client.model_weights_status_signal.value
        if value is not seen:
            is_read = type(value) is numpy.ndarray and value.ndim == 1 and value.dtype.kind in "iu"
            if not is_read or not value.size or not value.dtype.isnative:
                return stock(client)
            seen, view = value, memoryview(value)
        return is_below if view[0] < 0 else is_not

    return check_model_weight_status
