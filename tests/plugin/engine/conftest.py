"""Token threads that run, and what FastDeploy's log is told."""

import logging

import pytest

from tests.lib.rig import Rig


@pytest.fixture
def started(ops_queue):
    """A function that starts the token thread of a rig with two requests."""
    rigs = []

    def start(channel="plain", names=("a", "b"), *, prepare=None, **mode):
        rig = Rig(channel, names, **mode)
        if prepare is not None:
            prepare(rig)
        rigs.append(rig)
        rig.start()
        return rig

    yield start
    for rig in rigs:
        rig.close()


@pytest.fixture
def log(caplog):
    """Records of FastDeploy's loggers, which do not propagate."""
    logger = logging.getLogger("fastdeploy")
    caplog.set_level(logging.INFO)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
