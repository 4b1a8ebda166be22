"""What FastDeploy's log is told, and that nothing of ours fails where a test does not plant it."""

import logging

import pytest

from fd_postproc.fastdeploy.events import guard


@pytest.fixture
def log(caplog):
    """Records of all loggers, from INFO on."""
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture(autouse=True)
def nothing_of_ours_fails(request):
    """Fail a test in which FastDeploy's own took over: what it answers is as right, and hides our bug."""
    failures, stock = [], guard.Guard.failed

    def failed(guard, error):
        failures.append((guard.seam.name, repr(error)))
        stock(guard, error)

    with pytest.MonkeyPatch.context() as patch:  # a test's own ends before its fixtures do
        patch.setattr(guard.Guard, "failed", failed)
        yield
    if request.node.get_closest_marker("falls_back") is None:
        assert failures == []
