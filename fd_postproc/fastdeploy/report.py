"""Program that tries our class beside the installed FastDeploy's and prints one line of JSON.

A process of its own, because importing FastDeploy takes seconds and changes the process that does it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from .._version import __version__
from ..environment import API, FASTDEPLOY, KEEP_POLLING, is_on
from .engine.entry import MODULE
from .seams import Seam

MARK = "fd_postproc report: "  # FastDeploy and Paddle print, too


def report() -> dict[str, Any]:
    """Report what an engine that starts here would do.

    Returns
    -------
    dict
        ``{"error": text}``, or ``"from"`` the path of FastDeploy's module, ``"verdict"`` fields of the
        TrialResult on the classes, ``"decision"`` those of the decision that follows from it and from
        settings,
        ``"loaded"`` the name of the class that FastDeploy's own loader gives, empty if it gives none,
        ``"fast_paths"`` which fast paths an engine takes, ``"why_left"`` why not the others, ``"versions"``
        of libraries, ``"shapes"`` of FastDeploy's classes (names only), ``"api"`` verdicts for chat and
        completions, and ``"api_left"`` what else an API server leaves to FastDeploy, with the reason.
    """
    try:
        module = import_fastdeploy()
    except ImportError as error:
        return {"error": str(error)}
    from .engine.activation import decide
    from .engine.processor_class import make_class
    from .trial.compatibility import check

    taken = _fast_paths(module)
    return {
        "from": module.__file__,
        "verdict": asdict(check(module, make_class)),
        "decision": asdict(decide(module, make_class)),
        "loaded": _loaded(),
        "fast_paths": taken,
        "why_left": _why_left(taken),
        "versions": _versions(module),
        "shapes": _shapes(module),
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


def _fast_paths(module: Any) -> dict[str, bool]:
    """The fast paths of an engine, with FastDeploy's ordinary scheduler where it is available."""
    from .engine.delivery.sending import ENGINE, SERVER, Stock, sends_batches
    from .engine.delivery.trial import try_out
    from .engine.delivery.wake_up import is_woken
    from .engine.fast_paths import paths_of_classes
    from .engine.results.result_classes import plan_of

    try:
        plan = plan_of(module)
        taken = paths_of_classes(module, plan)
        cls = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        service = server = None
        if sends_batches(module.envs):
            service = getattr(importlib.import_module(ENGINE), "EngineService", None)
            server = importlib.import_module(SERVER)
        verdict = try_out(plan, Stock.of(cls, service, server))
        taken["delivery"] = verdict.hands_over
        if not is_on(KEEP_POLLING):
            taken["wake-up"] = is_woken(cls, {}, plan)
        if sends_batches(module.envs):
            taken["sending"] = verdict.sends
        return taken
    except Exception:  # classes of another kind: the verdict says so
        return {}


def _why_left(taken: dict[str, bool]) -> dict[str, str]:
    """Why fast paths are left, by name."""
    from .engine.fast_paths import why_left

    try:
        cls = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        return why_left(taken, cls)
    except Exception:
        return {}


LIBRARIES = (
    *(
        "fastdeploy-gpu",
        "fastdeploy",
        "paddlepaddle-gpu",
        "paddlepaddle",
        "paddleformers",
        "numpy",
        "msgpack",
    ),
    *("pyzmq", "pydantic", "prometheus-client", "tokenizers", "transformers", "uvicorn", "starlette"),
    *("fastapi", "uvloop", "Cython"),
)
"""Whose versions are told: those that the replaced code works with."""


def _versions(module: Any) -> dict[str, str]:
    """Versions of Python, this package, FastDeploy and its libraries."""
    told = {"python": sys.version.split()[0], "fd_postproc": __version__}
    told["fastdeploy (module)"] = str(getattr(sys.modules.get("fastdeploy"), "__version__", "unknown"))
    for name in LIBRARIES:
        try:
            told[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return told


_SHAPED = (
    "Request",
    "RequestOutput",
    "CompletionOutput",
    "RequestMetrics",
    "LogprobsLists",
    "TokenProcessor",
)


def _shapes(module: Any) -> dict[str, Any]:
    """Parameters and methods of FastDeploy's classes; words and digests of replaced methods."""
    told: dict[str, Any] = {}
    for name in _SHAPED:
        cls = getattr(module, name, None)
        if not isinstance(cls, type):
            continue
        try:
            parameters = list(inspect.signature(cls).parameters)
        except (TypeError, ValueError):
            parameters = []
        methods = sorted(one for one, value in vars(cls).items() if callable(value))
        told[name] = {"parameters": parameters, "methods": methods}
    try:
        from .engine.processor_class import make_class
        from .trial.known_code import record

        cls = make_class(module)
        stock: Any = getattr(cls, "stock", None)
        told["replaced"] = record([one for one in cls.__mro__ if one not in stock.__mro__], stock)
    except Exception as error:  # classes of another kind
        told["replaced"] = f"{type(error).__name__}: {error}"
    return told


def _api() -> dict[str, Any]:
    """Report what an API server would do: a verdict for chat, one for completions."""
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
    """The API parts that stay FastDeploy's, and why; without those for a server only."""
    from .seams import API_PARTS

    left: dict[str, str] = {}
    for seam in API_PARTS.values():
        if seam.is_program:
            continue
        reasons = [_left(seam, module) for module in seam.modules]
        if all(reasons):
            left[seam.own] = reasons[0]
    return left


def _left(seam: Seam, name: str) -> str:
    """Reason why a replacement is refused in a module of FastDeploy's; empty if it is installed."""
    try:
        return seam.put_in(importlib.import_module(name)) or ""
    except ModuleNotFoundError as error:
        return f"this FastDeploy has no {error.name}"
    except BaseException as error:  # FastDeploy's imports may end the process
        return f"{name} cannot be imported: {type(error).__name__}: {error}"


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
