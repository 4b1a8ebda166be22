"""Every finding is made for real, on private queues, with processes that live, wait or are dead."""

import functools

import pytest

from fd_postproc import doctor
from tests.lib.commands import run_main
from tests.lib.doctoring import queue_user

installation = functools.cache(doctor.check_fastdeploy)


@pytest.fixture(autouse=True)
def known_installation(monkeypatch):
    """FastDeploy's double is not tried again and again, nor what pip has installed looked through."""
    monkeypatch.setattr(doctor, "check_trial", list)
    monkeypatch.setattr(doctor, "check_paddle", list)
    monkeypatch.setattr(doctor, "check_fastdeploy", installation)


@pytest.fixture
def run(capsys):
    """A function that runs the command and gives (status, stdout, stderr)."""
    return functools.partial(run_main, capsys, "doctor")


@pytest.fixture
def live_user():
    """A function that runs code in a process which stays until the test ends."""
    started = []

    def live_user(key, code, **options):
        started.append(queue_user(key, f"{code}\nsys.stdin.read()", **options))
        return started[-1]

    yield live_user
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
