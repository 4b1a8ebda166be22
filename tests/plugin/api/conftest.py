"""Nothing is mended here: most tests compare with FastDeploy's own code.  `test_mends.py` turns it on."""

import os
import signal
import subprocess

import pytest

from fd_postproc.fastdeploy.api import judged
from tests.lib.children import python

ENGINE = """
import os, sys, time, zmq
socket = zmq.Context().socket(zmq.PULL)
socket.bind("ipc://" + sys.argv[1])
child = 0
if sys.argv[2:] == ["fork"]:
    child = os.fork()
    if child == 0:  # as an API process: it holds the socket that listens
        os.closerange(0, 3)
        time.sleep(600)
print(child, flush=True)
while True:
    print("request", socket.recv().decode(), flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_is_mended(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_MENDS", "0")


@pytest.fixture(autouse=True)
def nothing_was_logged(monkeypatch):
    monkeypatch.setattr(judged, "_left", set())


@pytest.fixture
def start_engine():
    """Starts a process that listens at a path as FastDeploy's engine does, with "fork" one with a child."""
    started, children = [], []

    def start(path, *arguments):
        started.append(subprocess.Popen(python(ENGINE, path, *arguments), stdout=subprocess.PIPE, text=True))
        children.append(int(started[-1].stdout.readline()))
        return started[-1]

    def end():
        """Kill all of them; what waits for a child would wait for half a minute."""
        while children:
            if child := children.pop():
                os.kill(child, signal.SIGKILL)
        for process in started:
            process.kill()

    start.end = end
    yield start
    end()
    for process in started:
        process.communicate()
