"""The worker side of the plug-in on the double: FastDeploy's own ops, the switch."""

import pytest

from fd_postproc.fastdeploy.worker import entry as worker
from tests.lib.quiet import Double, imported
from tests.lib.worker_side import STOCK_OPS, Called, restore_save_ops


@pytest.fixture
def double():
    """The double's modules by name; Paddle is loaded, as in a worker."""
    imported("paddle")
    return Double()


@pytest.fixture
def originals(double, monkeypatch):
    """FastDeploy's own save ops, in every place; names of those that were called."""
    called = Called()
    places = [
        double.model_executor__ops__gpu,
        double.model_executor__pre_and_post_process,
        double.spec_decode__mtp,
        double.spec_decode__mtp_cuda,
    ]
    for name, op in STOCK_OPS.items():

        def save(*arguments, name=name, op=op):
            called.append(name)
            return op(*arguments)

        for place in places:
            if hasattr(place, name):
                save.__module__ = "fastdeploy.model_executor.ops.gpu"  # as an op of FastDeploy's
                monkeypatch.setattr(place, name, save)
    yield called
    restore_save_ops()  # whoever put ours there, and what it says in the log


@pytest.fixture
def plugged(originals, ops_queue, monkeypatch):
    """The worker side, turned on; names of FastDeploy's ops that were called all the same."""
    monkeypatch.delenv("FD_POSTPROC_DISABLE", raising=False)
    worker.register()
    yield originals
    restore_save_ops()
