"""Commands where something is short, missing or odd: they work, or one line says cause, limit and remedy."""

import os
import subprocess

import pytest

from fd_postproc import queues
from tests.conftest import set_limit
from tests.lib.children import FD_POSTPROC
from tests.lib.commands import SHIPPED, flat
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

RECORDING = str(SHIPPED / "plain.fdrec")
COMMANDS = {
    "demo": ("demo", "--repeat", "1"),
    "inspect": ("inspect", RECORDING),
    "replay": ("replay", RECORDING, "8002"),
    "record": ("record", "8002", "it.fdrec", "--count", "1"),
    "explain": ("explain",),
}
WITHOUT_PROC = 'mount --bind "$PWD" /proc && exec "$@"'
SURROUNDINGS = {
    "64 descriptors": ["prlimit", "--nofile=64", "--"],
    "12 descriptors": ["prlimit", "--nofile=12", "--"],
    "150 MB of memory": ["prlimit", "--as=150000000", "--"],
    "no /proc": ["unshare", "-m", "sh", "-c", WITHOUT_PROC, "sh"],
    "no HOME": ["env", "-u", "HOME"],
    "read-only HOME": ["env", "HOME=/proc/1"],
    "20 columns": ["env", "COLUMNS=20"],
    "LANG=C": ["env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONIOENCODING=ascii"],
    "no standard output": ["sh", "-c", 'exec "$@" >&-', "sh"],
    "no standard error": ["sh", "-c", 'exec "$@" 2>&-', "sh"],
    "no standard input": ["sh", "-c", 'exec "$@" <&-', "sh"],
    "no folder": ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"],
    "python -OO": ["env", "PYTHONOPTIMIZE=2"],
    "unreadable switches": ["env", "FD_POSTPROC_DISABLE=perhaps", "FD_POSTPROC_FLIGHT_TOKENS=perhaps"],
    "an unreadable number": ["env", "FD_POSTPROC_LOG_STATS=perhaps", "FD_POSTPROC_FLIGHT=perhaps"],
}
QUICK = [(name, "demo") for name in ("64 descriptors", "no /proc")]
PAIRS = [(name, command) for k, name in enumerate(SURROUNDINGS) for command in [*COMMANDS][k % 5 :: 4]]


def told(surrounding, command, folder):
    """Exit status, stdout and stderr of a command in its surroundings."""
    environment = {**os.environ, "FD_POSTPROC_FLIGHT_FOLDER": str(folder)}
    done = subprocess.run(
        [*SURROUNDINGS[surrounding], FD_POSTPROC, *COMMANDS[command]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.resident_memory  # a sanitizer build needs far more
@each("surrounding, command", QUICK)
def test_the_demo_in_odd_surroundings(surrounding, command, tmp_path, own_namespace):
    in_odd_surroundings(surrounding, command, tmp_path)


@pytest.mark.nightly
@pytest.mark.resident_memory
@each("surrounding, command", PAIRS)
def test_a_command_in_odd_surroundings(surrounding, command, tmp_path, own_namespace):
    in_odd_surroundings(surrounding, command, tmp_path)


def in_odd_surroundings(surrounding, command, tmp_path):
    status, out, err = told(surrounding, command, tmp_path)
    assert "Traceback" not in err
    assert "interrupted" not in err  # by whom?
    if command in ("demo", "inspect") and surrounding != "no /proc":
        assert status == 0, err
        if surrounding != "no standard output":
            assert "every one arrived equal" in flat(out) if command == "demo" else out
    else:
        assert status in (0, 1)
        assert status == 0 or surrounding == "no standard error" or err.startswith(f"fd-postproc {command}: ")
    if (surrounding, command) == ("no /proc", "demo"):
        assert "/proc/sys" in err
        assert "mount /proc" in err


def test_no_queue_is_left_for_a_receiver(own_namespace):
    if not own_namespace:
        pytest.skip("kernel.msgmni is set in an IPC namespace of the test's own")
    set_limit("msgmni", 0)
    with pytest.raises(OSError, match=r"all 0 queues that kernel.msgmni allows .*sysctl -w kernel.msgmni"):
        queues.open_queue(12345)


def test_a_full_standard_output_is_named():
    with open("/dev/full", "w") as full:
        command = [FD_POSTPROC, "inspect", RECORDING]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "fd-postproc inspect: standard output: No space left on device\n"
