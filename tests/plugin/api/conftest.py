"""Nothing is mended here: most tests compare with FastDeploy's own code.  `test_mends.py` turns it on."""

import importlib
import os
import signal
import subprocess

import numpy as np
import pytest

from fd_postproc.fastdeploy.api import judged, lane, streams
from fd_postproc.fastdeploy.events.counters import forget
from tests.lib.children import python
from tests.lib.restated_parsers import install
from tests.restated.api import logprobs

from .laned import APIS

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


@pytest.fixture(scope="module")
def processor_class():
    cls, undo = install()
    yield cls
    for one in reversed(undo):
        one()


@pytest.fixture
def laned():
    """The double's serving modules with the lane, and its chunks: a mark in a row for each."""
    forget()
    written, made = lane.Lane._written, []

    def counted(stream, *told):
        chunk = written(stream, *told)
        made.extend([chunk] if chunk is not None else [])
        return chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane.Lane, "_written", counted)
        restore = [streams.install(importlib.import_module(name)) for name in APIS]
        yield made
        for one in restore:
            one()


@pytest.fixture
def spelling(processor_class, monkeypatch):
    """A data processor that spells tokens; and how often FastDeploy's own code makes log-probabilities."""

    class Spelling(processor_class):
        def process_logprob_response(self, token_ids, **options):
            token = token_ids if type(token_ids) is int else token_ids[0]  # of a prompt it is bare
            if token == 77:
                raise OverflowError("no such token")
            return f"t{token}"

    Spelling.__module__ = "fastdeploy.restated"
    Spelling.asked = []
    for name in ("chat", "completion"):
        stock = getattr(logprobs.Steps, name)
        monkeypatch.setattr(
            logprobs.Steps, name, lambda *told, _stock=stock: Spelling.asked.append(1) or _stock(*told)
        )
    return Spelling


@pytest.fixture
def built(monkeypatch):
    """Of how many candidates FastDeploy's own code makes log-probabilities of prompts."""
    counts, stock = [], logprobs.Steps.prompt

    def prompt(steps, tensors, *told):
        counts.append(np.size(tensors[0]))
        return stock(steps, tensors, *told)

    monkeypatch.setattr(logprobs.Steps, "prompt", prompt)
    return counts
