"""The installed Paddle, by the metadata that pip leaves."""

import sys

import pytest

from fd_postproc.doctor.paddle import check_paddle


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Installs metadata of distributions, and hides all others."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name, version):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return install


@pytest.mark.parametrize("name", ["paddlepaddle", "paddlepaddle_gpu"])
def test_an_old_paddle_is_reported_with_the_one_to_install(installed, name):
    installed(name, "2.6.2")
    (found,) = check_paddle()
    assert (found.severity, found.code) == ("warning", "paddle-old")
    assert f"{name.replace('_', '-')} 2.6.2 is too old" in found.seen
    assert "paddlepaddle-gpu==3.3.1 -i https://www.paddlepaddle.org.cn" in found.remedy[0]


def test_two_paddles_are_reported(installed):
    installed("paddlepaddle", "3.3.1")
    installed("paddlepaddle_gpu", "3.3.1")
    (found,) = check_paddle()
    assert found.code == "paddle-twice"
    assert found.remedy[0] == "pip uninstall paddlepaddle paddlepaddle-gpu"


@pytest.mark.parametrize("version", ["3.2.0", "3.3.1", "3.4.0.dev20260401", "develop"])
def test_a_paddle_of_today_is_not_reported(installed, version):
    installed("paddlepaddle_gpu", version)
    installed("paddlenlp", "2.8")
    assert check_paddle() == []


def test_no_paddle_is_not_reported(installed):
    assert check_paddle() == []
