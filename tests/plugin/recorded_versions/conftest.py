"""The double of every recorded version, and the plug-in on it, each in a process of its own."""

import functools
import json
import os

import pytest

from tests.lib.nursery import with_paddle
from tests.lib.paths import TESTS

SHAPES = TESTS / "shapes"


@functools.cache
def _report(version):
    environment = {**os.environ, "FD_POSTPROC_DOUBLE": version, "FD_PLUGINS": "fd_postproc"}
    for name in ("FD_POSTPROC_FASTDEPLOY", "FD_POSTPROC_DISABLE"):
        environment.pop(name, None)
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)  # the metrics of another version
    try:
        return with_paddle("from tests.lib import version_report; version_report.show()", environment)
    except AssertionError as error:  # said by each test, found out once
        return str(error)


@pytest.fixture(scope="session")
def report():
    """A function that gives what the plug-in does on a version's double; worked out once."""

    def of(version):
        told = _report(version)
        assert isinstance(told, dict), told
        return told

    return of


@pytest.fixture(scope="session")
def recorded():
    """A function that gives a version's recording."""
    return lambda version: json.loads((SHAPES / f"{version}.json").read_text())
