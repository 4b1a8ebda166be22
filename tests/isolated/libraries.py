"""``python -m tests.isolated.libraries``: the plug-in with other versions of FastDeploy's libraries.

Each version lies in a folder in front of the path, with what it needs.  With each the plug-in decides as in
an engine and an API server on the double, and tests that work with that library run.  A row says which parts
are in, which are left and why, and whether the tests pass.  It runs on one Python; other
versions need a build and a Paddle of their own, and are tried with their wheels (``.ci/wheels``).
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile

from fd_postproc.fastdeploy.report import MARK
from tests.lib.paths import ROOT, TESTS

API, ENGINE = TESTS / "plugin/api", TESTS / "plugin/engine"
MODELS = (API / "test_models.py", API / "test_activation.py", API / "test_logprobs.py")
MESSAGES = (ENGINE / "test_messages.py", API / "test_unpacking.py")
SOCKETS = (ENGINE / "test_socket_loop.py", API / "test_connections.py")
STREAMS = (API / "test_waits.py", API / "test_responses.py")
MATRIX = [
    *(("pydantic", version, MODELS) for version in ("2.7.4", "2.8.2", "2.9.2", "2.10.6", "2.11.9", "")),
    *(("msgpack", version, MESSAGES) for version in ("1.0.8", "1.1.0", "")),
    *(("pyzmq", version, SOCKETS) for version in ("25.1.2", "26.4.0", "")),
    *(("tokenizers", version, (API / "test_detokenising.py",)) for version in ("0.20.3", "0.21.4", "")),
    *(("transformers", version, (API / "test_detokenising.py",)) for version in ("4.49.0", "4.57.1", "")),
    *(("numpy", version, (*MESSAGES, TESTS / "core/test_step.py")) for version in ("1.26.4", "2.0.2", "")),
    *(("starlette", version, STREAMS) for version in ("0.37.2", "0.46.2", "")),
    *(("uvicorn", version, STREAMS) for version in ("0.29.0", "")),
    ("uvloop", "", STREAMS),
    ("prometheus_client", "0.20.0", (ENGINE / "test_reporter.py", ENGINE / "test_observers.py")),
]
REPORT = "import runpy; runpy.run_module('fd_postproc.fastdeploy.report', run_name='__main__')"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.isolated.libraries", description=__doc__)
    parser.add_argument("--only", help="those whose name and version hold this text")
    options, failed = parser.parse_args(), 0
    for name, version, tests in MATRIX:
        wanted = f"{name}=={version}" if version else name
        if options.only and options.only not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            told = row(wanted, folder, [*map(str, tests)])
        failed += not told["passed"]
        print(f"{wanted:26} {told['version']:10} {told['text']}", flush=True)
    return int(failed > 0)


def row(wanted, folder, tests):
    """What becomes of the plug-in with one library's version."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--only-binary", ":all:"]
    made = subprocess.run([*pip, "--target", folder, wanted], capture_output=True, text=True, check=False)
    if made.returncode:
        said = made.stderr.strip().splitlines()[-1][:100]
        return {"passed": True, "version": wanted.partition("==")[2], "text": f"not to be had here: {said}"}
    paths = [folder, str(TESTS / "fastdeploy_double"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FD_PLUGINS": "fd_postproc"}
    environment["FD_POSTPROC_KNOWN"] = str(TESTS / "known_double.json")
    parts = _parts(environment)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    tried = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (tried.stdout.strip().splitlines() or [tried.stderr[-200:]])[-1].rpartition(" in ")[0]
    passed = tried.returncode == 0 and " passed" in last  # where all are skipped, nothing was shown
    version = _installed(folder, wanted.partition("==")[0])
    return {"passed": passed, "version": version, "text": f"{parts}; tests: {last or 'none'}"}


def _installed(folder, name):
    """The version that lies in a folder."""
    found = importlib.metadata.distributions(name=name, path=[folder])
    return next((one.version for one in found), "")


def _parts(environment):
    """The parts that are in, and those that are left, as `doctor` has them."""
    code = [sys.executable, "-W", "ignore", "-c", REPORT]
    said = subprocess.run(code, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if MARK not in said.stdout:
        return f"no report: {said.stderr.strip().splitlines()[-1:]}"
    told = json.loads(said.stdout.rpartition(MARK)[2])
    left = {name: "" for name, is_on in told["fast_paths"].items() if not is_on}
    left |= {
        f"api {what}": verdict["reason"] for what, verdict in told["api"].items() if not verdict["compatible"]
    }
    if not told["decision"]["compatible"]:
        left["token processor"] = told["decision"]["reason"]
    count = 1 + len(told["fast_paths"]) + len(told["api"])
    words = "; ".join(f"{name} ({why[:60]})" for name, why in left.items())
    return f"{count - len(left)} of {count} parts are in" + (f", left: {words}" if words else "")


if __name__ == "__main__":
    sys.exit(main())
