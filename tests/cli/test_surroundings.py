"""Commands where something is short, missing or odd: they work, or one line says cause, limit and remedy."""

import os
import signal
import subprocess
import sys

import pytest

from tests.lib.children import FD_POSTPROC
from tests.lib.commands import SHIPPED, flat
from tests.lib.rows import each
from tests.lib.sandboxes import PIDS_ONLY
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
READ_ONLY = """
for it in / /tmp /var/tmp; do mount --bind $it $it && mount -o remount,bind,ro $it || exit; done
mount -t tmpfs none /dev/shm && cd / && exec env -u TMPDIR -u FD_POSTPROC_FLIGHT_FOLDER "$@"
"""
SURROUNDINGS = {
    "64 descriptors": ["prlimit", "--nofile=64", "--"],
    "12 descriptors": ["prlimit", "--nofile=12", "--"],
    "150 MB of memory": ["prlimit", "--as=150000000", "--"],
    "no /proc": ["unshare", "-m", "sh", "-c", WITHOUT_PROC, "sh"],
    "/proc of processes only": PIDS_ONLY,
    "a read-only root": ["unshare", "-m", "sh", "-c", READ_ONLY, "sh"],
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


@each("command", [[FD_POSTPROC], [sys.executable, "-m", "fd_postproc"]])
def test_an_interrupt_during_imports_has_no_traceback(command, tmp_path):
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [*command, "doctor"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


QUICK = [("no /proc", "demo"), ("a read-only root", "explain")]
PAIRS = [(name, command) for k, name in enumerate(SURROUNDINGS) for command in [*COMMANDS][k % 5 :: 4]]


@pytest.mark.resident_memory  # a sanitizer build needs far more
@pytest.mark.parametrize("pairs", [QUICK, pytest.param(PAIRS, marks=pytest.mark.nightly)])
def test_a_command_in_odd_surroundings(pairs, tmp_path, own_namespace):
    for surrounding, command in pairs:
        done = subprocess.run(
            [*SURROUNDINGS[surrounding], FD_POSTPROC, *COMMANDS[command]],
            cwd=tmp_path,
            env={**os.environ, "FD_POSTPROC_FLIGHT_FOLDER": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        status, out, err, what = done.returncode, done.stdout, done.stderr, (surrounding, command)
        if "unshare" in err:
            continue
        assert "Traceback" not in err, what
        assert "interrupted" not in err, what  # by whom?
        if command in ("demo", "inspect"):
            assert status == 0, (what, err)
            if surrounding != "no standard output":
                assert "every one arrived equal" in flat(out) if command == "demo" else out
        else:
            silent = status == 0 or surrounding == "no standard error"
            assert status in (0, 1), what
            assert silent or err.startswith(f"fd-postproc {command}: "), what
        if what == ("a read-only root", "explain"):
            assert "no flight recorder's file of an engine is in /dev/shm" in err


def test_a_full_standard_output_is_named(run, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        status, _, err = run("inspect", RECORDING)
    assert (status, err) == (1, "fd-postproc inspect: standard output: No space left on device\n")


MISSING = """
import sys
sys.modules["rich"] = None
from fd_postproc.cli import main
sys.exit(main(["doctor", "--no-trial"]))
"""


TERMINAL = """
import os, sys
os.dup2(os.openpty()[1], 0)
from fd_postproc.cli import main
sys.exit(main(["inspect", "-"]))
"""


@pytest.mark.resident_memory
@each(
    "command, words",
    [
        (["sh", "-c", f'"{FD_POSTPROC}" inspect - <&-'], "standard input is closed"),
        (["sh", "-c", f'"{FD_POSTPROC}" replay - 8002 <&-'], "standard input is closed"),
        ([sys.executable, "-c", TERMINAL], "standard input is a terminal"),
        (["prlimit", "--as=150000000", "--", FD_POSTPROC, "demo", "--repeat", "1"], "not enough memory"),
        ([sys.executable, "-c", MISSING], "the package rich is not installed"),
    ],
)
def test_what_is_missing_is_named(command, words):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode in (0, 1)
    assert done.returncode == 0 or words in done.stderr  # memory: how much a build needs varies
    assert "Traceback" not in done.stderr
