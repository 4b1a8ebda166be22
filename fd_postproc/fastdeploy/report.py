"""Program that tries our class beside the installed FastDeploy's and prints the outcome as one line of JSON.

A process of its own, because importing FastDeploy takes seconds and changes the process that does it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from ..environment import API, FASTDEPLOY, KEEP_POLLING, is_on
from .engine.entry import MODULE

MARK = "fd_postproc report: "  # FastDeploy and Paddle print, too


def report() -> dict[str, Any]:
    """What an engine that is started here would do.

    Returns
    -------
    dict
        ``{"error": text}``, or ``"from"`` the path of FastDeploy's module, ``"verdict"`` fields of the
        Verdict on the classes, ``"decision"`` those of the decision that follows from it and from settings,
        ``"loaded"`` the name of the class that FastDeploy's own loader gives, empty if it gives none,
        ``"ways"`` which quick ways an engine takes, ``"api"`` verdicts for chat and completions, and
        ``"api_left"`` what else an API server leaves to FastDeploy, with the reason.
    """
    try:
        module = import_fastdeploy()
    except ImportError as error:
        return {"error": str(error)}
    from .engine.activation import decide
    from .engine.processor import make_class
    from .trial.compatibility import check

    return {
        "from": module.__file__,
        "verdict": asdict(check(module, make_class)),
        "decision": asdict(decide(module, make_class)),
        "loaded": _loaded(),
        "ways": _ways(module),
        "api": _api(),
        "api_left": _api_left(),
    }


def import_fastdeploy() -> Any:
    """FastDeploy's token-processor module: the installed one, or that of a source tree.

    ``FD_POSTPROC_FASTDEPLOY`` names the tree.

    Raises
    ------
    ImportError
        If it cannot be imported, in words.
    """
    tree = FASTDEPLOY.text
    if tree and importlib.util.find_spec("fastdeploy") is None:
        sys.path.insert(0, os.path.dirname(tree) if os.path.basename(tree) == "fastdeploy" else tree)
    try:
        module: Any = importlib.import_module(MODULE)
    except BaseException as error:  # FastDeploy's imports may end the process
        raise ImportError(f"{MODULE} cannot be imported: {type(error).__name__}: {error}") from error
    paddle = getattr(module, "paddle", None)
    if paddle is not None:
        paddle.device.set_device("cpu")  # as FastDeploy's constructor does
    return module


def _ways(module: Any) -> dict[str, bool]:
    """Which quick ways an engine takes; with FastDeploy's ordinary scheduler, unless that cannot be had."""
    from .engine.deliveries import collection_of, delivery_to
    from .engine.messages import BATCH, method_in_use, served_methods
    from .engine.messages import MODULE as SERVER
    from .engine.quick_ways import ways_of_classes
    from .engine.send_loop import MODULE as ENGINE
    from .engine.send_loop import served_loop
    from .engine.shapes import plan_of
    from .engine.wake_up import is_woken

    try:
        plan = plan_of(module)
        ways = ways_of_classes(module, plan)
        cls = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        ways["delivery"] = delivery_to(object.__new__(cls), plan) is not None
        if not is_on(KEEP_POLLING):
            ways["wake-up"] = is_woken(cls, {}, plan)
        method = method_in_use(module.envs)
        if method is not None:
            ways["messages"] = method in served_methods(importlib.import_module(SERVER), plan)
        if method == BATCH:
            service = importlib.import_module(ENGINE).EngineService
            ways["fetching"] = collection_of(object.__new__(cls), plan) is not None
            ways["sending"] = served_loop(service, plan) is not None
        return ways
    except Exception:  # classes of another kind: the verdict says so
        return {}


def _api() -> dict[str, Any]:
    """What an API server would do: a verdict for chat, one for completions."""
    from .api.activation import WHAT
    from .api.trial import compare

    told: dict[str, Any] = {}
    for name, what in WHAT.items():
        try:
            module = importlib.import_module(f"fastdeploy.entrypoints.openai.{name}")
        except BaseException as error:  # FastDeploy's imports may end the process
            told[what] = {
                "compatible": False,
                "reason": f"cannot be imported: {type(error).__name__}: {error}",
            }
        else:
            told[what] = asdict(compare(module)[0])
    return told


def _api_left() -> dict[str, str]:
    """The parts that an API server leaves to FastDeploy, and why; but those that only a server can try."""
    from .api.parts import PARTS, put_in

    left: dict[str, str] = {}
    for name, part in PARTS.items():
        if part.is_program:
            continue
        try:
            reason = put_in(name, importlib.import_module(part.module))
        except ModuleNotFoundError as error:
            reason = f"this FastDeploy has no {error.name}"
        except BaseException as error:  # FastDeploy's imports may end the process
            reason = f"{part.module} cannot be imported: {type(error).__name__}: {error}"
        if reason is not None:
            left[part.what] = reason
    return left


def _loaded() -> str:
    """FastDeploy falls back to its own class whatever its loader raises."""
    try:
        cls = importlib.import_module("fastdeploy.plugins.token_processor").load_token_processor_plugins()
    except Exception:
        return ""
    return f"{cls.__module__}.{cls.__qualname__}"


if __name__ == "__main__":
    os.environ[API.name] = "0"  # what is tried beside FastDeploy's own code must not be in its place
    print(MARK + json.dumps(report()))
