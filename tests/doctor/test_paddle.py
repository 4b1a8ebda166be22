"""The installed Paddle, by the metadata that pip leaves."""

import sys

import pytest

from fd_postproc.doctor.paddle import check_paddle


@pytest.fixture
def installed(monkeypatch, tmp_path_factory):
    """Hides all distributions but those named, of which there is the metadata."""

    def install(**versions):
        root = tmp_path_factory.mktemp("site")
        monkeypatch.setattr(sys, "path", [str(root)])
        for name, version in versions.items():
            folder = root / f"{name}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return check_paddle()

    return install


def test_an_old_paddle_and_two_are_reported(installed):
    for name in "paddlepaddle", "paddlepaddle_gpu":
        (found,) = installed(**{name: "2.6.2"})
        assert (found.severity, found.code) == ("warning", "paddle-old")
        assert f"{name.replace('_', '-')} 2.6.2 is too old" in found.seen
    assert installed(paddlepaddle="3.3.1", paddlepaddle_gpu="3.3.1")[0].code == "paddle-twice"


def test_no_paddle_and_one_of_today_are_not_reported(installed):
    assert installed() == []
    for version in "3.2.0", "3.3.1", "3.4.0.dev20260401", "develop":
        assert installed(paddlepaddle_gpu=version, paddlenlp="2.8") == []
