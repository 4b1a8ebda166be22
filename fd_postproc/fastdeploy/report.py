"""Program that compares the installed FastDeploy with the record and prints one line of JSON.

A process of its own, because importing FastDeploy takes seconds and changes the process that does it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from .._version import __version__
from ..support.environment import API, FASTDEPLOY, KEEP_POLLING, is_on
from .engine.entry import MODULE
from .gate.judgements import gate
from .gate.seams import API_PARTS, SEAMS, Seam

MARK = "fd_postproc report: "  # FastDeploy and Paddle print, too


def report() -> dict[str, Any]:
    """Report what an engine and an API server that start here would do, or an ``"error"``.

    ``"loaded"`` is the name of the class that FastDeploy's own loader gives, empty for none.
    """
    try:
        module = import_fastdeploy()
    except ImportError as error:
        return {"error": str(error)}
    from .engine.activation import decide

    taken = _fast_paths(module)
    return {
        "from": module.__file__,
        "decision": asdict(decide(module)),
        "loaded": _loaded(),
        "fast_paths": taken,
        "why_left": gate.why_left(taken),
        "versions": _versions(),
        "api": _api(),
        "api_left": _api_left(module.envs),
        "worker": _worker(),
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
    from .engine.delivery.sending import ENGINE, SERVER, Stock, sends_batches, why_left
    from .engine.delivery.wake_up import is_woken
    from .engine.fast_paths import paths_of_classes
    from .engine.results.result_classes import plan_of

    try:
        taken = paths_of_classes(module, plan_of(module))
        cls = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        taken["delivery"] = gate.judge("delivery", cls).reason is None
        if not is_on(KEEP_POLLING):
            taken["wake-up"] = is_woken(cls)
            if getattr(module.envs, "ENABLE_V1_KVCACHE_SCHEDULER", False):
                importlib.import_module(SEAMS["scheduling"].module)
                taken["scheduling"] = gate.judge("scheduling").reason is None
        if sends_batches(module.envs):
            service = getattr(importlib.import_module(ENGINE), "EngineService", None)
            stock = Stock.of(cls, service, importlib.import_module(SERVER))
            taken["sending"] = not why_left(stock, service)
        return taken
    except Exception:  # classes of another kind: the decision says so
        return {}


LIBRARIES = (
    *("fastdeploy-gpu", "fastdeploy", "paddlepaddle-gpu", "paddlepaddle", "paddleformers", "numpy"),
    *("msgpack", "msgspec", "pyzmq", "pydantic", "prometheus-client", "tokenizers", "transformers"),
    *("uvicorn", "starlette", "fastapi", "uvloop", "Cython"),
)
"""Distributions whose versions are reported: the replaced code works with them."""


def _versions() -> dict[str, str]:
    """Versions of Python, this package, FastDeploy and its libraries."""
    versions = {"python": sys.version.split()[0], "fd_postproc": __version__}
    versions["fastdeploy (module)"] = str(getattr(sys.modules.get("fastdeploy"), "__version__", "unknown"))
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _api() -> dict[str, Any]:
    """Report what an API server would do, for chat and for completions."""
    from .api.activation import WHAT

    chunks = SEAMS["api chunks"]
    reasons = [_left(chunks, module) for module in chunks.modules]
    return {
        what: {"compatible": not reason, "reason": reason}
        for what, reason in zip(WHAT.values(), reasons, strict=True)
    }


_BATCHES = "DealerConnectionManager._dispatch_batch_responses"


def _api_left(envs: Any) -> dict[str, str]:
    """The API parts that stay FastDeploy's, and why; without those that nothing would use here."""
    from .engine.delivery.sending import sends_batches

    left: dict[str, str] = {}
    for seam in API_PARTS.values():
        if seam.is_program or (_BATCHES in seam.stands_for and not sends_batches(envs)):
            continue
        reasons = [_left(seam, module) for module in seam.modules]
        if all(reasons):
            left[seam.name] = reasons[0]
    return left


def _left(seam: Seam, name: str) -> str:
    """Reason why a replacement is refused in a module of FastDeploy's; empty if it is installed."""
    try:
        return gate.put_in(seam, importlib.import_module(name)) or ""
    except ModuleNotFoundError as error:
        return f"this FastDeploy has no {error.name}"
    except BaseException as error:  # FastDeploy's imports may end the process
        return f"{name} cannot be imported: {type(error).__name__}: {error}"


def _worker() -> dict[str, Any]:
    """The worker's parts that stay FastDeploy's, and why; or why that is unknown here."""
    from ..ops.table import SAVE_OPS
    from .build import ops_module

    try:
        ops = ops_module()
        if not any(callable(getattr(ops, name, None)) for name in SAVE_OPS):
            return {"untried": "this build of FastDeploy has none of the save ops known here"}
        module = importlib.import_module(SEAMS["streams"].module)
    except BaseException as error:  # FastDeploy's imports may end the process
        return {"untried": f"{type(error).__name__}: {error}"}
    reason = gate.judge("streams", module).reason
    return {"left": {"streams": reason} if reason else {}}


def _loaded() -> str:
    """FastDeploy falls back to its own class whatever its loader raises."""
    try:
        cls = importlib.import_module("fastdeploy.plugins.token_processor").load_token_processor_plugins()
    except Exception:
        return ""
    return f"{cls.__module__}.{cls.__qualname__}"


if __name__ == "__main__":
    os.environ[API.name] = "0"  # what is asked is not to be in its place yet
    print(MARK + json.dumps(report()))
