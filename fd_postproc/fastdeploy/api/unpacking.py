"""Unpacks a step's results from msgpack, and leaves log-probabilities packed until they are read.

FastDeploy's dispatcher calls ``msgpack.unpackb``, which makes a Python object for each log-probability.  Most
of them are only written again, or no client asked for them.  Here the dispatcher gets another ``msgpack``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..events.counters import note
from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.seams import NotPlain
from .chunks._chunks import ARRAY, Unknown, lists_of, unpack

DISPATCHER = "_dispatch_batch_responses"


class UnpackingMsgpack:
    """The module ``msgpack`` with another ``unpackb``."""

    reads_arrays = True

    def __init__(self, stock: Any) -> None:
        self._stock = stock
        self._guard = Guard("api unpacking", api_log)

    def unpackb(self, packed: Any, **options: Any) -> Any:
        """Unpack as msgpack does; the values of keys in `LAZY` become lists when they are read."""
        if not options and type(packed) is bytes and self._guard.is_on:
            try:
                results = unpack(packed)
                self._guard.worked()
                return results
            except Unknown as reason:
                note(str(reason))
            except UnicodeDecodeError:
                note("a message of results with a text that is none")
            except Exception as error:
                self._guard.failed(error)
        options.setdefault("ext_hook", self._extension)
        return self._stock.unpackb(packed, **options)

    def _extension(self, code: int, content: bytes) -> Any:
        """Lists of an array that came as one value; any other extension as msgpack's own."""
        return lists_of(content) if code == ARRAY else self._stock.ExtType(code, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def install(module: Any) -> Callable[[], None]:
    """Install our msgpack for the dispatcher of ``openai.utils``; return a function that restores."""
    stock = vars(module).get("msgpack")
    dispatcher = vars(module.DealerConnectionManager).get(DISPATCHER)
    if dispatcher is None or stock is not importlib.import_module("msgpack"):
        raise NotPlain("its dispatcher unpacks in another way")
    return replacements.install("api unpacking", (module, "msgpack", UnpackingMsgpack(stock)))
