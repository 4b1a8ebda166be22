"""What FastDeploy's log is told."""

import logging

import pytest


@pytest.fixture
def log(caplog):
    """Records of all loggers, from INFO on."""
    caplog.set_level(logging.INFO)
    return caplog
