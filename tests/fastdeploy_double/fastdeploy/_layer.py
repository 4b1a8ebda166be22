"""FD_POSTPROC_FASTDEPLOY=PATH: modules of a FastDeploy source tree in place of the double's.

Those are the token processor, the requests and results, and the data modules that they import.  What acts on
the outside stays the double's: metrics, switches, sockets, loggers, the scheduler.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path

LAYERED = {
    "fastdeploy.output.token_processor": "output/token_processor.py",
    "fastdeploy.engine.request": "engine/request.py",
    "fastdeploy.worker.output": "worker/output.py",
}

# Data that those import: the tree's where it has them, or they would lack names.
_THEIR_DATA = (
    *("engine.pooling_params", "engine.sampling_params", "engine.tasks", "entrypoints.openai.protocol"),
    *("trace.constants", "spec_decode.types"),
)


class SourceTree(importlib.abc.MetaPathFinder):
    """Finds the layered modules in a FastDeploy source tree."""

    def __init__(self, package):
        self.package = package
        self.files = {name: package / file for name, file in LAYERED.items()}
        for name in _THEIR_DATA:
            file = package.joinpath(*name.split(".")).with_suffix(".py")
            if file.is_file():
                self.files[f"fastdeploy.{name}"] = file

    def find_spec(self, name, path=None, target=None):
        if name not in self.files:
            return None
        return importlib.util.spec_from_file_location(name, self.files[name])


def package_folder(path):
    """The folder `fastdeploy` of a source tree, given the tree or that folder.

    Raises
    ------
    ImportError
        Naming the file that is not there.
    """
    tree = Path(path)
    candidates = [tree / "fastdeploy", tree]
    for folder in candidates:
        if all((folder / file).is_file() for file in LAYERED.values()):
            return folder
    missing = [file for file in LAYERED.values() if not (candidates[0] / file).is_file()]
    raise ImportError(
        f"FD_POSTPROC_FASTDEPLOY={path}: no {candidates[0] / missing[0]}; "
        "give a FastDeploy source tree (the folder that holds fastdeploy/), or unset the variable"
    )


def install():
    """Put the tree named by the environment in front of the double's own modules."""
    path = os.environ.get("FD_POSTPROC_FASTDEPLOY", "").split(os.pathsep)[0]
    if path and not any(isinstance(finder, SourceTree) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceTree(package_folder(path)))
