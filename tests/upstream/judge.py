"""In a process of its own: FastDeploy with one change, and what the gate says of each seam."""

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile

from fd_postproc.fastdeploy import gate
from fd_postproc.fastdeploy.engine import activation
from fd_postproc.fastdeploy.engine.results.result_classes import plan_of
from fd_postproc.fastdeploy.seams import SEAMS

PACKAGES = ("fastdeploy.", "tests.restated.")
NO_PLACE, BROKEN, DATA = "no such place", "FastDeploy itself fails", "data"


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds FastDeploy's modules, with the edits of one change in their text.

    Attributes
    ----------
    found : list of str
        Modules in which an edit has found its place.
    """

    def __init__(self, change):
        self.change, self.found = change, []

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(PACKAGES):
            return None
        is_wanted = self.change.edit and name.startswith(self.change.where)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if is_wanted else None
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return None
        with open(spec.origin, "rb") as file:
            tree = ast.parse(importlib.util.decode_source(file.read()))
        if not self.change.edit(tree):
            return None
        self.found.append(name)
        # A file of its own: what reads FastDeploy's sources finds these.
        folder = tempfile.mkdtemp(prefix="changed-")
        file = os.path.join(folder, os.path.basename(spec.origin))
        with open(file, "w") as out:
            out.write(ast.unparse(ast.fix_missing_locations(tree)))
        return importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=spec.submodule_search_locations
        )


def judge(change):
    """The seams that the gate leaves to FastDeploy, by name, with the reason."""
    finder = Changed(change)
    sys.meta_path.insert(0, finder)
    os.environ.update(change.environment)
    if change.shape:
        _change_shape(change)
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        told = _serving() if change.serving else _engine()
    return told if finder.found or change.shape else {NO_PLACE: ""}


def _serving():
    left = {}
    for name in SEAMS["api chunks"].modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            return {BROKEN: f"{type(error).__name__}: {error}"}
        reason = gate.judge("api chunks", module).reason
        left |= {"api chunks": reason} if reason else {}
        _, reason = importlib.import_module("fd_postproc.fastdeploy.api.activation").decide(module)
        left |= {DATA: reason} if reason else {}
    return left


def _engine():
    try:
        module = importlib.import_module("fastdeploy.output.token_processor")
        for name in ("inter_communicator.zmq_server", "scheduler.local_scheduler", "engine.common_engine"):
            importlib.import_module(f"fastdeploy.{name}")
    except Exception as error:
        return {BROKEN: f"{type(error).__name__}: {error}"}
    left = {}
    decision = activation.decide(module)
    if not decision.compatible:
        left["token processor"] = decision.reason
    for name in ("dictionaries", "stamps", "metrics", "delivery", "wake-up", "sending"):
        reason = gate.judge(name).reason
        left |= {name: reason} if reason else {}
    try:
        plan_of(module)
    except Exception as error:  # the entry point takes FastDeploy's own class then
        left[DATA] = f"{type(error).__name__}: {error}"
    return left


def _change_shape(change):
    """The double takes its classes from a recording: it is changed, too."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shapes")
    name = os.environ.get("FD_POSTPROC_DOUBLE") or "26"
    file = name if name.endswith(".json") else os.path.join(folder, f"{name}.json")
    with open(file) as before:
        told = change.shape(json.load(before))
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as after:
        json.dump(told, after)
    os.environ["FD_POSTPROC_DOUBLE"] = after.name
