"""Every finding is made for real, on private queues, with processes that live, wait or are dead."""

import pytest

from fd_postproc import doctor
from fd_postproc.cli import main
from tests.lib.doctoring import by_hand


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    """FastDeploy's double, which the tests can import, is not tried again and again."""
    monkeypatch.setattr(doctor, "check_trial", list)


@pytest.fixture
def run(capsys):
    """A function that runs the command and gives (status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = main(["doctor", *map(str, arguments)])
        except SystemExit as leaving:
            status = leaving.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def live_user():
    """A function that runs code in a process which stays until the test ends."""
    started = []

    def live_user(code, *arguments, **options):
        process = by_hand(f"{code}\nsys.stdin.read()", *arguments, **options)
        started.append(process)
        return process

    yield live_user
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
