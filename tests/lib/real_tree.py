"""Programs that run in a real FastDeploy: a source tree, first on their import path, in a process of its own.

``FD_POSTPROC_FASTDEPLOY`` names one tree, or several, separated by colons; ``FD_POSTPROC_MAY_FALL_BACK=1``
says that the plug-in does not know them all.
"""

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fd_postproc.support.process_stat import cpu_seconds
from tests.lib.service_tool import FOLDER, TREES, why_not

LIB = Path(__file__).resolve().parent
SHIM = FOLDER / "shim"
NEEDED = ("paddleformers", "msgpack", "zmq", "prometheus_client", "fastapi", "openai", "aiohttp")
PATIENCE = 600
"""Seconds in which a program that does not hang uses a tenth of a processor, on a busy machine, too."""
MOST_CPU = 3600
"""CPU seconds of the longest program, and some: for one that turns in circles."""

each_tree = pytest.mark.parametrize(
    "tree", TREES or [None], ids=lambda tree: tree.name if tree else "no tree"
)


def check(tree):
    """Skip the test where there is no tree, or not what it imports."""
    if tree is None:
        pytest.skip("FD_POSTPROC_FASTDEPLOY names no FastDeploy source tree")
    if not (tree / "fastdeploy").is_dir():
        pytest.fail(f"FD_POSTPROC_FASTDEPLOY: {tree} holds no folder fastdeploy")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"FastDeploy's requirements are not installed: {', '.join(missing)}")


TRIAL = """
import importlib, json
from dataclasses import asdict
from fd_postproc.fastdeploy.engine.activation import decide
module = importlib.import_module("fastdeploy.output.token_processor")
print("told: " + json.dumps(asdict(decide(module))))
"""


def serves(tree, **variables):
    """The engine side's decision in a tree; skips the test where it may fall back, and does."""
    check(tree)
    verdict = _verdict(tree, *sorted(variables.items()))
    if not verdict["compatible"]:
        assert "Error" not in verdict["reason"]
        assert os.environ.get("FD_POSTPROC_MAY_FALL_BACK") == "1", verdict["reason"]
        pytest.skip(f"falls back: {verdict['reason']}")
    return verdict


def need_service(file="", text=""):
    """Skip the test where no service can be started, or the first tree has no such file with this text."""
    if reason := why_not():
        pytest.skip(reason)
    serves(TREES[0])
    place = TREES[0] / "fastdeploy" / file
    if file and not (place.exists() and text in place.read_text()):
        pytest.skip(f"this FastDeploy is older: it has no {file}{f' with {text!r}' if text else ''}")


@functools.cache
def _verdict(tree, *variables):
    with tempfile.TemporaryDirectory() as folder:
        return run(tree, TRIAL, folder=Path(folder), **dict(variables))[0]


def _wait(child):
    used, end = 0.0, time.monotonic() + PATIENCE
    while time.monotonic() < end and used < MOST_CPU:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
            return
        now = cpu_seconds(child.pid) or 0.0
        if now >= used + PATIENCE / 10:
            used, end = now, time.monotonic() + PATIENCE
    raise subprocess.TimeoutExpired(child.args, PATIENCE)


def run(tree, program, *arguments, folder, shim=True, **variables):
    """The last line that a Python program prints, which is JSON behind a word and a colon.

    Parameters
    ----------
    tree : Path
    program : str
        Path of a file, or code.
    folder : Path
        Where it runs and logs.
    shim : bool
        Whether the machine looks as if it had a GPU (``harness/service/shim``).
    """
    check(tree)
    paths = [*([SHIM] if shim else []), tree, LIB.parents[1]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FD_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "FD_LOG_DIR": str(folder / "log"),
        "FD_SERVICE_DIALECT": "packed",
        "PYTHONWARNINGS": "ignore",
    }
    code = [program] if program.endswith(".py") else ["-c", program]
    out, err = folder / "stdout", folder / "stderr"
    with out.open("w") as stdout, err.open("w") as stderr:
        child = subprocess.Popen(
            [sys.executable, *code, *map(str, arguments)],
            env=environment | variables,
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            _wait(child)
        finally:
            with contextlib.suppress(ProcessLookupError):  # FastDeploy's servers outlive the program
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    said = SimpleNamespace(stdout=out.read_text(errors="replace"), stderr=err.read_text(errors="replace"))
    told = [line for line in said.stdout.splitlines() if line.startswith("told: ")]
    assert told, f"status {child.returncode}\n{said.stdout[-2000:]}\n{said.stderr[-4000:]}"
    return json.loads(told[-1].removeprefix("told: ")), said
