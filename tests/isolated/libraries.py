"""``python -m tests.isolated.libraries``: the plug-in with other versions of FastDeploy's libraries.

Each version lies in a folder in front of the path, with what it needs.  With each the plug-in decides as in
an engine and an API server on the double, and tests that work with that library run.  A row says which parts
are in, which are left and why, and whether the tests pass; a version that cannot be had is skipped, and
counted.  It runs on one Python; other versions need a build and a Paddle of their own, and are tried with
their wheels (``.ci/wheels``) and with FastDeploy's trees (``.ci/checks/fastdeploy``).
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from fd_postproc.fastdeploy.report import MARK
from tests.lib.paths import ROOT, TESTS

API, ENGINE = TESTS / "plugin/api", TESTS / "plugin/engine"
MODELS = tuple(API / f"test_{name}.py" for name in ("lane", "stream_scores", "answers", "logprobs"))
MESSAGES = (ENGINE / "test_messages.py", API / "test_unpacking.py")
SOCKETS = (ENGINE / "test_socket_loop.py", API / "test_connections.py")
STREAMS = (API / "test_lane.py", API / "test_responses.py")
METRICS = (ENGINE / "test_reporter.py", ENGINE / "test_observers.py", ENGINE / "test_counters.py")
PURE = " WRAPT_DISABLE_EXTENSIONS=1"
GATE = (TESTS / "plugin/test_gate.py",)
OPENTELEMETRY = (
    "opentelemetry-instrumentation-fastapi opentelemetry-instrumentation-asgi fastapi opentelemetry-sdk "
    "opentelemetry-instrumentation-logging opentelemetry-instrumentation-redis redis "
    "OTEL_TRACES_EXPORTER=none OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none"
)
# Distributions of one folder, the first of which has the version, and variables that are set.
MATRIX = [
    *(("pydantic", version, MODELS) for version in (*(f"2.{minor}.*" for minor in range(7, 14)), "")),
    *(("msgpack", version, MESSAGES) for version in ("1.0.8", "1.1.0", "")),
    *(("pyzmq", version, SOCKETS) for version in ("25.1.2", "26.4.0", "")),
    *(("tokenizers", version, (API / "test_detokenising.py",)) for version in ("0.20.3", "0.21.4", "")),
    *(("transformers", version, (API / "test_detokenising.py",)) for version in ("4.49.0", "4.57.1", "")),
    *(("numpy", version, (*MESSAGES, TESTS / "core/test_step.py")) for version in ("1.26.4", "2.0.2", "")),
    *(("starlette", version, STREAMS) for version in ("0.37.2", "0.46.2", "0.50.0", "1.0.0", "")),
    *(("uvicorn", version, STREAMS) for version in ("0.29.0", "")),
    ("uvloop", "", STREAMS),
    *(("prometheus_client", version, METRICS) for version in ("0.20.0", "0.22.1", "0.24.1", "")),
    *((f"wrapt{version}{more}", "", GATE) for version in ("==1.17.3", "") for more in ("", PURE)),
    (OPENTELEMETRY, "", (*STREAMS, *SOCKETS, API / "test_activation.py", API / "test_dispatcher.py")),
]
REPORT = "import runpy; runpy.run_module('fd_postproc.fastdeploy.report', run_name='__main__')"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.isolated.libraries", description=__doc__)
    parser.add_argument("--only", help="those whose name and version hold this text")
    options, outcomes = parser.parse_args(), Counter()
    for name, version, tests in MATRIX:
        wanted = f"{name}=={version}" if version else name
        if options.only and options.only not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            told = row(wanted, folder, [*map(str, tests)])
        outcomes[told["outcome"]] += 1
        print(f"{told['outcome']:8} {wanted:26} {told['version']:10} {told['text']}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    return int(outcomes["failed"] > 0 or not outcomes["passed"])


def row(wanted, folder, tests):
    """What becomes of the plug-in with one library's version."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--only-binary", ":all:"]
    variables = [word for word in wanted.split() if "=" in word and "==" not in word]
    names = [word for word in wanted.split() if word not in variables]
    made = subprocess.run([*pip, "--target", folder, *names], capture_output=True, text=True, check=False)
    if made.returncode:
        said = made.stderr.strip().splitlines()[-1][:100]
        return {"outcome": "skipped", "version": "", "text": f"not to be had here: {said}"}
    switched_on = map(str, Path(folder).glob("opentelemetry/instrumentation/auto_instrumentation"))
    paths = [*switched_on, folder, str(TESTS / "fastdeploy_double"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FD_PLUGINS": "fd_postproc"}
    environment["FD_POSTPROC_KNOWN"] = str(TESTS / "known_double.json")
    environment |= dict(word.split("=") for word in variables)
    parts = _parts(environment)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    tried = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (tried.stdout.strip().splitlines() or [tried.stderr[-200:]])[-1].rpartition(" in ")[0]
    passed = tried.returncode == 0 and " passed" in last  # where all are skipped, nothing was shown
    version = _installed(folder, names[0].partition("==")[0])
    outcome = "passed" if passed else "failed"
    return {"outcome": outcome, "version": version, "text": f"{parts}; tests: {last or 'none'}"}


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
