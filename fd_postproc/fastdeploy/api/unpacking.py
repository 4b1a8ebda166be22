"""Unpacks a step's results from msgpack, and leaves log-probabilities packed until they are read.

FastDeploy's dispatcher has the module ``msgpack`` unpack a message with the results of all requests: for each
log-probability a Python object, most of them only to be written down again, or thrown away where a client did
not ask.  It stays as it is; its ``msgpack`` is another one, whose ``unpackb`` leaves them packed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .. import replacements
from .chunks._chunks import ARRAY, Unknown, lists_of, note, unpack
from .chunks.model_fields import NotPlain

DISPATCHER = "_dispatch_batch_responses"


class UnpackingMsgpack:
    """The module ``msgpack`` with another ``unpackb``.

    Parameters
    ----------
    stock : module
    """

    reads_arrays = True

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def unpackb(self, packed: Any, **options: Any) -> Any:
        """Unpack as msgpack does; the values of keys in `LAZY` become lists when they are read."""
        if not options and type(packed) is bytes:
            try:
                return unpack(packed)
            except Unknown as reason:
                note(str(reason))
            except UnicodeDecodeError:
                note("a message of results with a text that is none")
        options.setdefault("ext_hook", self._extension)
        return self._stock.unpackb(packed, **options)

    def _extension(self, code: int, content: bytes) -> Any:
        """Lists of an array that came as one value; any other extension as msgpack's own."""
        return lists_of(content) if code == ARRAY else self._stock.ExtType(code, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def install(module: Any) -> Callable[[], None]:
    """Install our msgpack in FastDeploy's dispatcher; return a function that restores.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.openai.utils``.

    Raises
    ------
    NotPlain
        If its dispatcher does not unpack as it is known to.
    """
    stock = vars(module).get("msgpack")
    dispatcher = vars(module.DealerConnectionManager).get(DISPATCHER)
    if dispatcher is None or stock is not importlib.import_module("msgpack"):
        raise NotPlain("its dispatcher unpacks in another way")
    return replacements.install(
        "api unpacking",
        (module, "msgpack", UnpackingMsgpack(stock)),
    )
