"""The HTTP parser that FastDeploy's API server would use."""

import importlib.util

import pytest

from fd_postproc.doctor.http_parser import check_http_parser


@pytest.fixture
def installed(monkeypatch):
    """Says which modules there are."""

    def install(*names):
        def find_spec(name):
            if name == "broken":
                raise ValueError
            return object() if name in names else None

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

    return install


def test_h11_is_named_with_the_remedy(installed):
    installed("uvicorn", "h11")
    (found,) = check_http_parser()
    assert (found.severity, found.code, found.remedy) == (
        "warning",
        "http-parser",
        ("pip install httptools",),
    )
    assert "h11" in found.seen


@pytest.mark.parametrize("names", [(), ("h11",), ("uvicorn", "httptools")])
def test_nothing_is_said_otherwise(installed, names):
    installed(*names)
    assert check_http_parser() == []


def test_a_module_that_cannot_be_looked_for(monkeypatch):
    def find_spec(name):
        raise ValueError("__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert check_http_parser() == []
