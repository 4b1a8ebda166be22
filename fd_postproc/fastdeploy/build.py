"""Detects properties of the installed FastDeploy by its code and trials, never by version."""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import sysv_ipc

from ..core.layout import Channel
from ..queues import CHANNEL_PATHS, not_made, queue_key

_ID = "INFERENCE_MSG_QUEUE_ID"
_tried: set[int] = set()  # ids that ops of this process were asked for

# The packed dialects put the number of columns above these bits of a header word.
_SHIFTS = {"topk": 16, "spec_topk": 8}


def stock_dialect(channel: Channel) -> str | None:
    """Dialect that FastDeploy's own token processor reads; None if it cannot be found out.

    The two channels changed independently of each other, and a packed message crashes a legacy receiver.
    """
    try:
        stock = importlib.import_module("fastdeploy.output.token_processor").TokenProcessor
        shifts = {shift for cls in stock.__mro__[:-1] for shift in _shifts(sys.modules[cls.__module__])}
    except Exception:  # whatever a foreign import may raise
        return None
    return "packed" if _SHIFTS[channel] in shifts else "legacy"


def _shifts(module: Any) -> set[int]:
    """The bit counts of the right shifts in a module's code."""
    shifts = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            right = node.right
            if isinstance(right, ast.Constant) and isinstance(right.value, int):
                shifts.add(right.value)
    return shifts


def ops_module() -> Any:
    """FastDeploy's module of ops on this platform.

    Most platforms compile the CUDA build's sources and keep them where CUDA's are.
    """
    platform = importlib.import_module("fastdeploy.platforms").current_platform
    names = [name for name in _OWN_OPS if getattr(platform, f"is_{name}", bool)()]
    return importlib.import_module(f"fastdeploy.model_executor.ops.{names[0] if names else 'gpu'}")


_OWN_OPS = ("xpu", "iluvatar", "gcu", "intel_hpu")


class KeyRule(enum.Enum):
    """The rule by which ops make the key of a queue."""

    OURS = "ours"
    OTHER = "another"
    UNKNOWN = "unknown"


def key_rule(get_output_ep: Callable[..., Any] | None) -> KeyRule:
    """Detect whether FastDeploy's ops make a queue's key as ours do.

    Three rules were shipped over time.  Two sides with different ones never meet, and neither can see it.
    `get_output_ep` is the only op that looks the queue up at every call, so that it can be asked for a queue
    of our own, which is removed again.  Where the ops cannot be loaded at all, only our side makes keys.

    Raises
    ------
    QueueError
        If the kernel makes no queue at all at present, so that no op can be asked: the text names its limit.
    """
    if not callable(get_output_ep):
        return KeyRule.UNKNOWN if callable(getattr(ops_module(), "get_output", None)) else KeyRule.OURS
    try:
        sysv_ipc.MessageQueue(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX).remove()
    except OSError as error:
        raise not_made(error, "asking FastDeploy's ops for the key of a queue") from None
    try:  # twice: another program may have removed the queue of the first attempt
        ours = _asks_for_our_key(get_output_ep) or _asks_for_our_key(get_output_ep)
    except (OSError, ValueError, sysv_ipc.Error):
        return KeyRule.UNKNOWN
    return KeyRule.OURS if ours else KeyRule.OTHER


def _asks_for_our_key(get_output_ep: Callable[..., Any]) -> bool:
    paddle, numpy = importlib.import_module("paddle"), importlib.import_module("numpy")
    tensor = paddle.to_tensor(numpy.full((514, 1), 2, numpy.int64), place=paddle.CPUPlace())
    queue_id, ours, others = _unused_id()
    before = os.environ.get(_ID)
    os.environ[_ID] = str(queue_id)
    try:
        get_output_ep(tensor, 0, False)
        return _exists(ours)
    finally:
        if before is None:
            del os.environ[_ID]
        else:
            os.environ[_ID] = before
        for key in (ours, *others):
            with contextlib.suppress(sysv_ipc.Error):
                sysv_ipc.MessageQueue(key).remove()


def _unused_id() -> tuple[int, int, list[int]]:
    """A queue id whose keys are free by all rules; its key by our rule, and by the others."""
    path = CHANNEL_PATHS["plain"]
    folder = os.stat(path)
    while True:
        # Above FastDeploy's own, which are ports.  Never one twice: ops may keep what they have opened.
        queue_id = random.SystemRandom().randrange(3 << 18, 1 << 20)
        if queue_id in _tried:
            continue
        _tried.add(queue_id)
        ours = queue_key(queue_id, path)
        wide = (folder.st_dev & 0xFF) << 24 | (folder.st_ino & 0xFF) << 16 | queue_id & 0xFFFF
        others = [queue_key(queue_id, path, "libc"), wide - (1 << 32) if wide >= 1 << 31 else wide]
        if not any(_exists(key) for key in (ours, *others)):
            return queue_id, ours, others


def _exists(key: int) -> bool:
    try:
        sysv_ipc.MessageQueue(key)
    except sysv_ipc.ExistentialError:
        return False
    except sysv_ipc.PermissionsError:
        pass
    return True
