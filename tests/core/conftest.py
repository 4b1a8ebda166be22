"""The ways by which steps go: a queue, and addresses."""

import pytest

ROADS = ("sysv", "ipc", "tcp")


def made(kind, queue_keys):
    from tests.lib.roads import Road  # needs pyzmq, which not every check of the core has

    road = Road(kind, queue_keys)
    yield road
    road.close()


@pytest.fixture(params=ROADS)
def road(request, queue_keys):
    yield from made(request.param, queue_keys)


@pytest.fixture(params=ROADS[1:])
def address_road(request, queue_keys):
    yield from made(request.param, queue_keys)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where flight recorders make their files during the test."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    return tmp_path / "flights"
