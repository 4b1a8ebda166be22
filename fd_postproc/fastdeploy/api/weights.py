"""Are the model's weights being cleared?  FastDeploy's generators ask before each result.

The answer is a number in shared memory below zero.  Compared as NumPy's, it takes longer than a chunk's JSON.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .plans import NotPlain

ENGINE_CLIENT = "fastdeploy.entrypoints.engine_client"
METHOD = "check_model_weight_status"
KNOWN_NAMES = ("model_weights_status_signal", "value")
_CANNED = (-(1 << 31), -2, -1, 0, 1, 2, (1 << 31) - 1)


def install(module: Any) -> Callable[[], None]:
    """Give FastDeploy's engine client our comparison; a function that undoes it.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.engine_client``.

    Raises
    ------
    NotPlain
        If its own looks at more than that number, or finds something else.
    """
    cls = module.EngineClient
    stock = vars(cls)[METHOD]
    if stock.__code__.co_names != KNOWN_NAMES:
        raise NotPlain("it looks at something else")
    array = importlib.import_module("numpy").ndarray

    @functools.wraps(stock)
    def check_model_weight_status(client: Any) -> Any:
        value = client.model_weights_status_signal.value
        return value.item(0) < 0 if type(value) is array and value.ndim == 1 else stock(client)

    for number in _CANNED:
        signal = importlib.import_module("numpy").array([number, 3, -3], dtype="int32")
        client = SimpleNamespace(model_weights_status_signal=SimpleNamespace(value=signal))
        if bool(stock(client)) is not check_model_weight_status(client):
            raise NotPlain(f"{number} means something else")
    setattr(cls, METHOD, check_model_weight_status)

    def restore() -> None:
        setattr(cls, METHOD, stock)

    return restore
