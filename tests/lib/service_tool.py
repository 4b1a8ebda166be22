"""``harness/service`` without the checkout on the import path: it would hide the installed package."""

import importlib
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).resolve().parents[2] / "harness" / "service"
NAME = "fd_postproc_harness_service"
TREES = [Path(path) for path in os.environ.get("FD_POSTPROC_FASTDEPLOY", "").split(":") if path]
NEEDED = ("aiohttp", "httpx", "openai", "tokenizers", "uvicorn", "zmq")


@cache
def tool():
    """Its modules, by name."""
    spec = importlib.util.spec_from_file_location(
        NAME, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
    names = (
        "canary", "cases", "faults", "generators", "namespace", "pair_faults", "pairs", "pauses", "ranks",
        "reading", "server", "soak",
    )  # fmt: skip
    return SimpleNamespace(**{n: importlib.import_module(f"{NAME}.{n}") for n in names})


def not_installed():
    """What the modules need and is not installed, in words, or None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"FastDeploy's requirements are not installed: {', '.join(missing)}" if missing else None


def why_not():
    """Why no service can be started here, or None."""
    if not TREES:
        return "FD_POSTPROC_FASTDEPLOY names no FastDeploy source tree"
    if not (TREES[0] / "fastdeploy").is_dir():
        return f"FD_POSTPROC_FASTDEPLOY: {TREES[0]} holds no folder fastdeploy"
    return not_installed() or tool().namespace.possible()
