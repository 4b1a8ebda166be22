"""Unpacks a step's results from msgpack, and leaves log-probabilities packed until they are read.

FastDeploy's dispatcher has the module ``msgpack`` unpack a message with the results of all requests: for each
log-probability a Python object, most of them only to be written down again, or thrown away where a client did
not ask.  It stays as it is; its ``msgpack`` is another one, whose ``unpackb`` leaves them packed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .. import seams
from .chunks._chunks import ARRAY, LAZY, Unknown, lists_of, note, unpack
from .chunks.model_fields import NotPlain

DISPATCHER = "_dispatch_batch_responses"
KNOWN_NAMES = frozenset(
    {
        "msgpack", "unpackb", "running", "pull_client", "read", "request_map", "get", "put_nowait",
        "request_id", "startswith", "rsplit", "isinstance", "dict", "ZMQMetricsStats", "msg_recv_total",
        "main_process_metrics", "record_zmq_stats", "pull_metrics_address", "api_server_logger", "error",
        "traceback", "format_exc", "ConnectionError", "OSError", "Exception", "get_base_request_id",
    }
)  # fmt: skip
"""Names that the dispatcher may use; others could mean that it reads results."""


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
        If its dispatcher does not unpack as it is known to, or ours does not give what msgpack does.
    """
    stock = vars(module).get("msgpack")
    dispatcher = vars(module.DealerConnectionManager).get(DISPATCHER)
    if dispatcher is None or stock is not importlib.import_module("msgpack"):
        raise NotPlain("its dispatcher unpacks in another way")
    more = sorted({*dispatcher.__code__.co_names} - KNOWN_NAMES)
    if more:
        raise NotPlain(f"its dispatcher looks at more: {', '.join(more)}")
    difference = _difference(stock)
    if difference:
        raise NotPlain(difference)
    return seams.install(
        "api unpacking",
        (module, "msgpack", UnpackingMsgpack(stock)),
    )


def _difference(stock: Any) -> str | None:
    """The first difference from the installed msgpack; None if there is none."""
    for name, value in CANNED.items():
        packed = stock.packb(value)
        expected = stock.unpackb(packed)
        for lazy in (False, True):
            actual = unpack(packed, lazy)
            if repr(actual) != repr(expected) or (not lazy and not _same_types(actual, expected)):
                return (
                    f"{name} are unpacked in another way: {_short(expected)} is expected, "
                    f"ours is {_short(actual)}"
                )
    return None


def _same_types(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(map(_same_types, [*one, *one.values()], [*other, *other.values()]))
    return not isinstance(one, list) or all(map(_same_types, one, other))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


_IDS, _SCORES = [[5, 70000, 1 << 40], [6, -1, 0]], [[-0.5, -1e-300, float("-inf")], [-1.5, 0.0, float("nan")]]
_LOGPROBS: tuple[Any, ...] = (
    *(None, [], [_IDS, _SCORES, [1, 300]], [_IDS, _SCORES], [_IDS, _SCORES, [1, 300], []]),
    *(
        [[[1]], [[1]], [1]],
        [[[1]], [["x"]], [1]],
        [[None], [None], [1]],
        [[], [], []],
        [[[]], [[]], [1]],
        {},
        "x",
    ),
)
CANNED: dict[str, Any] = {
    "numbers": [
        *(0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
        *(-1, -32, -33, -128, -129, -32768, -32769, -(1 << 31), -(1 << 31) - 1, -(1 << 63)),
        *(0.0, -0.0, 1.5, float("inf"), 5e-324, True, False, None),
    ],
    "texts": ["", "é", "日本😀", "\x00\x7f", *("x" * size for size in (31, 32, 255, 256, 65536))],
    "lists and maps": [
        [],
        {},
        [[]] * 16,
        [0] * 65536,
        {str(n): n for n in range(16)},
        {"k" * 80: {"": [None]}},
    ],
    "results": [
        {"request_id": "a_0", "outputs": {"token_ids": [5, 6], **dict.fromkeys(LAZY, rows)}}
        for rows in _LOGPROBS
    ],
}
"""Samples for the comparison."""
