"""Token threads that run, what FastDeploy's log is told, and the table of its classes."""

import logging

import pytest

from tests.lib.quiet import imported
from tests.lib.rig import Rig


@pytest.fixture
def started(ops_queue):
    """A function that starts the token thread of a rig with two requests, and ends the one before."""
    rigs = []

    def close():
        while rigs:
            rigs.pop().close()

    def start(channel="plain", names=("a", "b"), *, prepare=None, **mode):
        close()
        rig = Rig(channel, names, **mode)
        if prepare is not None:
            prepare(rig)
        rigs.append(rig)
        rig.start()
        return rig

    yield start
    close()


@pytest.fixture
def log(caplog):
    """Records of FastDeploy's loggers, which do not propagate."""
    logger = logging.getLogger("fastdeploy")
    caplog.set_level(logging.INFO)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def plan():
    """What the plug-in knows of the classes of FastDeploy's results."""
    module = imported("fastdeploy.output.token_processor")
    return imported("fd_postproc.fastdeploy.engine.results.result_classes").plan_of(module)
