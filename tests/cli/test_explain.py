"""``fd-postproc explain``, and recordings out of a flight recorder's file."""

import contextlib
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import time
from types import SimpleNamespace

import pytest

import fd_postproc as fp
from fd_postproc.cli import explain
from fd_postproc.flight.codes import BOOT_AT, End, Kind
from fd_postproc.flight.recorder import Recorder
from tests.lib.children import ended, forked, python
from tests.lib.commands import flat, key_of
from tests.lib.flight_entries import event, flight, steady
from tests.lib.random_steps import random_step
from tests.lib.rows import each

LOG = logging.getLogger("tests.flight")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where files are during the test."""
    folder = tmp_path / "flights"
    folder.mkdir()
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(folder))
    return folder


@pytest.fixture
def recorder(folder):
    """An engine's recorder, in which something has happened."""
    recorder = Recorder.begin("engine", "spec_topk", 8002, LOG, size=1 << 18)
    recorder.began(3, "chat-1", 70, 1.5)
    recorder.event(Kind.REFUSED, -1, 999, 512, -1, text="batch")
    recorder.ended(3, "chat-1", 12, End.TOKEN)
    return recorder


def test_the_newest_engines(run, recorder):
    os.utime(recorder.path, (0, 0))  # a mapped file's time is not that of its last entry
    status, out, err = run("explain")
    assert status == 0
    assert f"the engine that ended last: engine {os.getpid()}, queue 8002 (spec_topk), began 2" in err
    assert "killed or crashed 2" in err
    assert f"engine {os.getpid()}" in out
    assert "queue 8002, spec_topk" in out
    assert "malformed" in out
    assert "batch 999 is outside 0..512" in flat(out)


def test_what_went_wrong_stands_in_its_order_over_midnight(run, recorder, monkeypatch):
    midnight = time.monotonic()
    recorder.event(Kind.FELL_BACK, text="later")
    monkeypatch.setattr(explain.Picture, "clock", lambda _, at: "23:59:59" if at < midnight else "00:00:00")
    _, out, _ = run("explain", recorder.path)
    assert out.index("23:59:59  error    malformed") < out.index("00:00:00  warning  fell-back")


@contextlib.contextmanager
def running(queue_id, request, node="", exits=False, fault=None):
    """An engine of another process, which runs until the block ends; its pid."""
    told, order = os.pipe(), os.pipe()

    def engine():
        recorder = Recorder.begin("engine", "topk", queue_id, LOG, size=1 << 16, node=node)
        recorder.began(3, request, 70, 1.5)
        if fault:
            recorder.event(Kind.SEND_FAILED, text="too big")
        if exits:  # its finalizers have run, and another one hangs
            recorder._ends[0]()
        os.write(told[1], b"begun")
        os.read(order[0], 1)
        del recorder

    child = forked(engine)
    os.close(told[1])
    try:
        assert os.read(told[0], 5) == b"begun"
        yield child
    finally:
        os.write(order[1], b".")
        ended(child)
        for descriptor in (told[0], *order):
            os.close(descriptor)


def test_whose_story_it_is_where_one_runs_and_others_ended(run, folder):
    with running(8003, "chat-old") as ended:
        pass
    with running(8002, "chat-new") as pid:
        status, out, err = run("explain")
        assert status == 0
        assert f"the engine that runs: engine {pid}, queue 8002 (topk), began " in err
        assert f"engine-8003-{ended}.flight" in flat(err).replace(" ", "")
        assert f"engine {pid} (runs)" in out
        assert f"engine {ended}" in run("explain", "chat-old")[1]  # the file that knows it
        with running(8004, "chat-later") as later:
            pass
        assert f"the engine that runs: engine {pid}, " in run("explain")[2]  # though another began later
        (path,) = folder.glob(f"*-{later}.flight")
        path = path.rename(str(path).replace(f"-{later}.", f"-{pid}."))  # of another container
        assert f"the run of process {pid} that runs: engine {pid}, " in flat(run("explain", pid)[2])
        path.unlink()
        # As systemd-logind does at the last logout of the user: it is read while the process has it.
        (path,) = folder.glob(f"*-{pid}.flight")
        path.unlink()
        status, out, _ = run("explain", pid)
        assert (status, "queue 8002, topk" in out) == (0, True)
    status, _, err = run("explain", pid)
    assert (status, "RemoveIPC" in err) == (1, True)


@pytest.mark.realtime
def test_several_that_run_are_listed(run, folder):
    with running(8002, "chat-1") as one, running(8003, "chat-2") as other:
        status, out, err = run("explain")
        assert (status, out) == (1, "")
        assert "2 engines run here:" in err
        for pid, queue in (one, 8002), (other, 8003):
            assert f"engine {pid}, queue {queue} (topk)" in err
        assert "name one by its process: fd-postproc explain" in err


@pytest.mark.realtime
def test_of_several_that_run_each_line_says_what_went_wrong(run, folder):
    with running(8002, "chat-1", fault="send-failed"), running(8003, "chat-2"):
        err = flat(run("explain")[2])
        assert "queue 8002 (topk), began 2" in err
        assert err.count("nothing went wrong") == 1
        assert err.count(" send-failed ") == 1


def test_role_and_rank_where_there_are_several(run, folder):
    """In the head line, in the list of those that run, and for a program."""
    with contextlib.ExitStack() as stack:
        pids = {
            node: stack.enter_context(running(queue_id, "chat-1", node))
            for queue_id, node in (
                (8002, "decode node, rank 1"),
                (8003, "prefill node"),
                (8004, "decode node, rank 0"),
            )
        }
        _, _, err = run("explain")
        listed = [line.strip() for line in err.splitlines() if " began " in line]
        assert [line.partition(", queue")[0] for line in listed] == [
            f"engine {pids[node]}, {node}" for node in sorted(pids)
        ]
        for node, pid in pids.items():
            assert f"engine {pid} (runs), {node}, queue " in run("explain", pid)[1]
            assert json.loads(run("explain", pid, "--json")[1])["node"] == node


@each("how", ["path", "pid", "none"])
def test_a_request(run, recorder, folder, how):
    (folder / "a copy.flight").write_bytes(b"")
    named = {"path": [recorder.path], "pid": [os.getpid()], "none": []}[how]
    assert "malformed" in run("explain", *named)[1]
    status, out, _ = run("explain", *named, "chat-1")
    assert status == 0
    assert "1.500 s after it had arrived by the wall clock (70 prompt tokens)" in flat(out)
    assert "with an end token" in out


def test_for_a_program(run, recorder):
    recorder.end()
    status, out, _ = run("explain", recorder.path, "chat-1", "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["schema"], answer["side"], answer["pid"]) == (1, "engine", os.getpid())
    assert answer["alive"] is False
    assert [one["code"] for one in answer["findings"]] == ["malformed"]
    assert answer["request"]["end"] == "ended"
    assert answer["request"]["tokens"] == 12


def test_latencies_are_of_the_last_steps(monkeypatch):
    monkeypatch.setattr(explain, "_KEPT_LATENCIES", 1)
    sent = [event(100.0 + k, Kind.SENT, k, 500_000_000) for k in range(2)]
    engine = explain.Picture(flight(*steady(2, 101.0, gap=1.25)), 103.0)
    assert explain._latencies(engine, flight(*sent, side="worker")) == pytest.approx([1.75])


def test_the_worker_is_read_along(run, recorder, folder):
    worker = Recorder.begin("worker", "spec_topk", 8002, LOG, size=1 << 16)
    worker.event(Kind.SEND_FAILED, -1, 0, text="kernel.msgmax = 8")
    worker.end()
    _, out, _ = run("explain", recorder.path)
    assert "send-failed" in out
    assert f"worker {os.getpid()}" in flat(out)
    elsewhere = shutil.copy(recorder.path, folder.parent)  # whose workers are not these
    assert "send-failed" not in run("explain", elsewhere)[1]
    os.chmod(worker.path, 0o600)
    with open(worker.path, "r+b") as file:
        file.seek(BOOT_AT)
        file.write(bytes(16))
    assert "send-failed" not in run("explain", recorder.path)[1]


def test_runs_of_one_process_number(run, folder):
    """As in a container; each with the worker of its time."""
    made = []
    for n in range(3):
        engine, worker = (
            Recorder.begin(side, "topk", 8002, LOG, size=1 << 16) for side in ("engine", "worker")
        )
        engine.event(Kind.REFUSED, -1, 700 + n, 512, -1, text="batch")
        worker.event(Kind.SEND_FAILED, -1, 0, text=f"kernel.msgmax = {40 + n}")
        made.append((engine, worker))
        worker.end()
        if n:  # the first was killed: it has no last entry
            engine.end()
    for n, (engine, _) in enumerate(made):
        out = flat(run("explain", engine.path)[1])
        assert [k for k in range(3) if f"batch {700 + k} is" in out] == [n]
        assert [k for k in range(3) if f"kernel.msgmax = {40 + k}" in out] == [n]
    for names in ([], [os.getpid()]):
        status, out, err = run("explain", *names)
        assert status == 0
        assert "batch 702" in flat(out) or "kernel.msgmax = 42" in flat(out)
        assert all(engine.path in err.replace("\n", "").replace(" ", "") for engine, _ in made[:2])
        assert err.count("killed or crashed") == 1


@each(
    "what, words",
    [
        ([], "no flight recorder's file of an engine is in"),
        (["4194305"], "no flight recorder's file of process 4194305"),
        (["/dev/null"], "/dev/null is not a regular file"),
        (["/proc/version"], "is not a flight recorder's file"),
        (["/nowhere/at-all"], "No such file"),
        (["nofile.flight"], "No such file"),
        (["{tmp}/socket"], "/socket is not a regular file"),
    ],
)
def test_what_is_not_there(run, folder, what, words, tmp_path):
    if "{tmp}/socket" in what:
        os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    status, _, err = run("explain", *(one.format(tmp=tmp_path) for one in what))
    assert status == 1
    assert words in err
    assert "Traceback" not in err


def test_files_of_another_user_are_named(run, folder):
    os.mkdir(os.path.join(os.path.dirname(folder), "fd_postproc-65534"))
    for what in ([], ["4194305"]):
        status, _, err = run("explain", *what)
        assert (status, "nobody" in err) == (1, True)


def test_a_file_that_is_removed_meanwhile_is_passed_over(run, recorder, folder, monkeypatch):
    """Another process's start removes files of ended runs."""
    heads = explain._engines()
    monkeypatch.setattr(
        explain, "_engines", lambda: [SimpleNamespace(name=str(folder / "gone.flight")), *heads]
    )
    status, out, err = run("explain", "chat-1")
    assert (status, err) == (0, ""), out


def test_a_request_that_nobody_knows_and_messages_that_were_not_kept(run, recorder):
    status, _, err = run("explain", "chat-2")
    assert (status, "of 1 file of engines" in err, "none knows request chat-2" in err) == (1, True, True)
    status, _, err = run("explain", recorder.path, "chat-2")
    assert (status, f"{recorder.path} does not know request chat-2" in err) == (1, True)
    status, _, err = run("inspect", recorder.path)
    assert (status, "FD_POSTPROC_FLIGHT_TOKENS=1" in err) == (1, True)


KILLED = """
import logging, os, signal
from fd_postproc.flight.recorder import Recorder
recorder = Recorder.begin("engine", "plain", 7, logging.getLogger(), size=1 << 16)
recorder.began(0, "a", 7, 0.5)
recorder.ring.busy(True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_was_killed(run, folder):
    assert subprocess.run(python(KILLED)).returncode == -signal.SIGKILL
    _, out, _ = run("explain")
    assert "has ended" in out
    assert "killed" in out
    assert "in the middle of a step" in flat(out)
    assert "It has no end" in run("explain", "a")[1]


def test_a_process_whose_exit_hangs_is_not_said_to_have_ended(run, folder):
    with running(1, "a", exits=True) as process:
        _, out, err = run("explain")
        assert f"engine {process} (is ending since " in out
        assert ", is ending since 2" in err
        assert "has ended" not in out
        found = json.loads(run("explain", "--json")[1])
        assert (found["alive"], bool(found["exit_began"])) == (True, True)


def test_a_live_picture_grows_with_its_file(run, folder, monkeypatch):
    """Also when the ring begins anew."""
    recorder = Recorder.begin("engine", "plain", 8002, LOG, size=1 << 14)
    looks = []

    def sleep(_):
        if len(looks) == 5:
            raise KeyboardInterrupt
        looks.append(True)
        write(f"news-{len(looks)}")

    def write(text):
        for number in range(100):
            recorder.event(Kind.UNDELIVERED, text=f"{text}, number {number}")

    write("begun")
    monkeypatch.setattr(explain.Picture, "is_alive", True)  # it takes its own process for ended
    monkeypatch.setattr(explain, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))
    status, out, _ = run("explain", recorder.path, "--follow")
    assert status == 130
    assert "news-5, number 99" in out
    assert "begun" not in out  # overwritten


# ---- as a recording ------------------------------------------------------------------------------------


@pytest.fixture
def kept(folder, monkeypatch):
    """A file with messages, and the steps that they hold."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_TOKENS", "1")
    recorder = Recorder.begin("engine", "spec_topk", 8002, LOG, size=1 << 20)
    steps = [random_step("spec_topk", seed, batch=5) for seed in range(4)]
    for step in steps:
        recorder.frame(fp.encode(step, "compact"), 2)
    recorder.frame(b"a message of a damaged file", 0)
    return recorder.path, steps


def test_a_file_with_messages_is_replayed(run, kept, queue):
    path, steps = kept
    with fp.Receiver("spec_topk", key=queue.key) as receiver:
        status, _, err = run("replay", path, key_of(queue), "--full-speed")
        assert (status, "4 of 4 messages") == (0, err[:15])
        assert [receiver.receive(0) for _ in steps] == steps
