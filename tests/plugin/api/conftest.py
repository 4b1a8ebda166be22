"""Nothing is mended here: most tests compare with FastDeploy's own code.  `test_mends.py` turns it on."""

import pytest


@pytest.fixture(autouse=True)
def nothing_is_mended(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_MENDS", "0")
