"""Program: FastDeploy's own unit tests: of its token processor, on its class (0) or ours (1); or of a file.

``FD_PLUGINS`` decides whether the tests of a file meet the plug-in, as it does for a service.
"""

import importlib
import json
import signal
import sys
from pathlib import Path

import pytest

MODULE = "fastdeploy.output.token_processor"
FILES = (
    *("test_process_batch_output.py", "test_process_batch_draft_tokens.py", "test_token_processor.py"),
    *("test_process_batch_output_use_zmq.py", "test_token_processor_trace_print.py"),
)


LIMIT = 30
"""Seconds for a test: some start a server, which ends by itself only where it finds no GPU."""


class Outcomes:
    def __init__(self):
        self.of = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        signal.signal(signal.SIGALRM, _ends)
        signal.alarm(LIMIT)
        try:
            return (yield)
        finally:
            signal.alarm(0)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self.of[report.nodeid] = report.outcome


def _ends(number, frame):
    raise TimeoutError(f"a test of FastDeploy's is not over after {LIMIT} s")


def put_ours_in_place():
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    module = importlib.import_module(MODULE)
    stock, ours = module.TokenProcessor, make_class(module)
    module.TokenProcessor = ours
    for cls in vars(module).values():  # its relatives get the new base, too
        if isinstance(cls, type) and cls is not ours and stock in cls.__bases__:
            cls.__bases__ = tuple(ours if base is stock else base for base in cls.__bases__)


def run(folder, files):
    outcomes = Outcomes()
    # Hypothesis's plug-in is imported at the end, and meets what a test of FastDeploy's has replaced.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-c", "/dev/null", "-W", "ignore"]
    pytest.main([*options, "--rootdir", *map(str, (folder, *files))], plugins=[outcomes])
    print("\ntold: " + json.dumps(outcomes.of))


def run_on_the_class(ours):
    module = importlib.import_module(MODULE)
    if ours:
        put_ours_in_place()
    folder = Path(module.__file__).resolve().parents[2] / "tests" / "output"
    run(folder, [folder / name for name in FILES if (folder / name).exists()])


if __name__ == "__main__":
    if sys.argv[1] in ("0", "1"):
        run_on_the_class(bool(int(sys.argv[1])))
    else:
        run(Path(sys.argv[1]).parent, sys.argv[1:])
