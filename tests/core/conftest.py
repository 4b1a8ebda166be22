"""What tests of the core share."""

import pytest


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where flight recorders make their files during the test."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    return tmp_path / "flights"
