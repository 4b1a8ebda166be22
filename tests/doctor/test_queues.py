"""The doctor on queues: backlog, users, leftovers, what waits in them, who may use them."""

import os
import subprocess
import time
from types import SimpleNamespace

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import doctor
from fd_postproc._core import payload_size
from fd_postproc.doctor import queue_checks
from fd_postproc.doctor.processes import User, last_user
from fd_postproc.doctor.snapshot import Queue
from fd_postproc.queues import QueueInfo
from fd_postproc.support.process_stat import process_stat
from tests.lib.children import python
from tests.lib.doctoring import dead_user, examined, queue_user
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE, until


def test_a_healthy_queue_with_live_users(queue, live_user):
    user = live_user(queue.key, "q.send(b'x' * 8)\nq.receive()\nq.send(b'x' * 8)")
    until(lambda: queue.last_send_pid == user.pid and queue.current_messages == 1)
    queue.receive()
    found = examined(queue)
    assert set(found) == {"queue"}
    assert found["queue"].severity == "ok"
    assert f"sender: process {user.pid} (" in found["queue"].seen
    assert found["queue"].data["sender_state"] == "alive"
    assert found["queue"].data["receiver_state"] == "alive"


def test_the_role_and_rank_of_a_queues_engine(queue, live_user, monkeypatch, tmp_path):
    """By its flight recorder, as long as it runs and nobody else reads the queue."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flight"))
    code = (
        "import sys; from fd_postproc.flight import files\n"
        f"made = files.make('engine', 'topk', 8002, {queue.key}, 1 << 16, 'prefill node, rank 1')\n"
        "print(made.path, flush=True); sys.stdin.read()"
    )
    queue.send(bytes(8))
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        engine.stdout.readline()
        assert examined(queue)["queue"].subject.endswith(", prefill node, rank 1)")
        live_user(queue.key, "q.receive()")
        until(lambda: queue.last_receive_pid)
        assert "prefill node" not in examined(queue)["queue"].subject
        queue.send(bytes(8))
        queue.receive()
        engine.stdin.close()
    assert "prefill node" not in examined(queue)["queue"].subject


def test_a_thread_that_waited_for_its_message_is_told_as_its_process(queue, live_user):
    """For such a reader the kernel keeps the thread's number."""
    code = "import threading\nthreading.Thread(target=lambda: (q.receive(), sys.stdin.read())).start()"
    user = live_user(queue.key, code)
    until(lambda: len(os.listdir(f"/proc/{user.pid}/task")) == 2)
    time.sleep(0.1)  # it waits: a message that is there when it comes does not show the thread
    queue.send(bytes(8))
    until(lambda: queue.last_receive_pid)
    assert examined(queue)["queue"].data["last_receiver"] == user.pid


@pytest.mark.realtime
def test_a_full_queue(queue):
    step = fp.encode(fp.Step.from_arrays("plain", [1] * 500, range(500)))
    while True:
        try:
            queue.send(step, block=False)
        except sysv_ipc.BusyError:
            break
    found = examined(queue)["queue-full"]
    assert found.severity == "error"
    assert f"{queue.max_size:,} bytes" in found.seen
    assert f"ipcrm -q {queue.id}" in found.remedy[0]
    for _ in range(3):
        queue.receive()
    assert {"queue", "queue-backlog"} <= set(examined(queue))
    while queue.current_messages > 1:
        queue.receive()
    assert set(examined(queue)) == {"queue"}


def test_a_queue_with_room_for_one_more_is_not_full(queue):
    queue.max_size = 3000
    for full in (False, False, True):
        queue.send(bytes(1000))
        assert ("queue-full" in examined(queue)) is full


@each(("size", "floods"), [(4, True), (40, True), (64, False)])
def test_a_flood_of_small_messages(queue, size, floods):
    for _ in range(256):
        queue.send(bytes(size))
    found = examined(queue)
    assert ("queue-flood" in found) is floods
    queue.receive()
    queue.send(bytes(size))  # being read, it is the sender's fault where it is full, and it is not
    assert [one.severity for code, one in examined(queue).items() if "flood" in code] == ["warning"] * floods
    if floods:
        assert f"256 messages of {size} bytes on average" in found["queue-flood"].seen
        assert f"process {os.getpid()} (" in found["queue-flood"].seen
    for _ in range(256):
        queue.receive()


def test_a_flood_is_no_fault_of_a_reader_that_reads(queue):
    """The full queue is not its doing; and the last to write is not taken for the worker."""
    queue.max_size = min(queue.max_size, 16384)
    for _ in range(queue.max_size // 4):
        queue.send(bytes(4))
    assert "queue-full" in examined(queue)  # nobody has ever read it
    queue.receive()
    queue.send(bytes(4))
    found = examined(queue)
    assert found["queue-flood"].severity == "error"
    assert f"record msqid:{queue.id} " in found["queue-flood"].remedy[1]
    assert not {"queue-full", "queue-backlog"} & set(found)


def test_what_dead_processes_left(queue):
    pid = dead_user(queue.key, "for n in range(3): q.send(b'\\1' + bytes(7))\nq.receive()")
    found = examined(queue)
    left = found["queue-leftover"]
    assert left.severity == "warning"
    assert "2 messages of theirs first" in left.seen
    assert f"process {pid} (dead)" in found["queue"].seen
    assert left.remedy == (f"with the service stopped: ipcrm -q {queue.id}",)


def test_a_live_user_on_either_side_is_no_leftover(queue):
    dead_user(queue.key)
    queue.send(b"\1" + bytes(7))  # this process is now the last sender
    found = examined(queue)
    assert "queue-leftover" not in found
    assert found["engine"].severity == "warning"
    dead_user(queue.key, "q.send(bytes(8))")
    queue.receive()
    assert {"worker"} == examined(queue).keys() & {"worker", "queue-leftover"}


def test_a_process_of_another_user_is_alive(monkeypatch):
    def kill(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert last_user(os.getppid(), int(time.time())).state == "alive"


def test_a_zombie_is_dead(queue):
    process = queue_user(queue.key, "q.send(bytes(8))\nq.receive()")
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert "queue-leftover" in examined(queue)
    process.wait()


def test_a_process_without_its_first_thread_lives(queue, live_user):
    """It is shown as a zombie, while others of its threads run."""
    thread = "import ctypes, threading\nthreading.Thread(target=sys.stdin.read).start()"
    user = live_user(queue.key, f"{thread}\nq.send(bytes(8))\nctypes.CDLL(None).pthread_exit(None)")
    until(lambda: process_stat(user.pid)[0] == "Z")
    assert examined(queue)["queue"].data["sender_state"] == "alive"


@each("apart, is_read", [(-3, False), (-2, True), (0, True), (2, True), (3, False)])
def test_whether_a_queue_is_being_read(apart, is_read):
    """Its reader has taken a message when the last ones were sent: neither long before nor long after."""
    info = QueueInfo(7, 7, 0o600, 0, 0, 0, None, 1, 1, 100 + apart, 100)
    alive = User(1, 100, "alive")
    assert Queue(info, (), True, alive, alive).being_read is is_read


@each("me, mode, may_not", [(0, 0o600, False), (7, 0o600, True), (7, 0o606, False), (7, 0o660, True)])
def test_who_may_not_use_a_queue(me, mode, may_not, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: me)
    nobody = User(0, 0, "nobody")
    queue = Queue(QueueInfo(7, 7, mode, 1, 0, 0, None, 0, 0, 0, 0), (), True, nobody, nobody)
    assert ("who may not use it" in queue_checks._access(queue)[0].seen) is may_not


@each("seconds", [-3600, -1, 60, 1625, 3600])
def test_a_live_user_is_never_taken_for_dead_when_the_clock_is_set(queue, seconds, monkeypatch):
    queue.send(bytes(8))
    queue.receive()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    (seen,) = doctor.take(doctor.Scope(keys=frozenset([queue.key]))).queues
    assert (seen.sender.state, seen.receiver.state, seen.leftover) == ("alive", "alive", False)
    assert ", -" not in str(seen.sender)  # nor did it send in the future


def test_a_process_of_another_pid_namespace_is_never_taken_for_dead(queue):
    queue.send(bytes(8))
    queue.receive()
    code = f"""
from fd_postproc import doctor
queue = doctor.take(doctor.Scope(keys=frozenset([{queue.key}]))).queues[0]
print(queue.sender.state, queue.leftover)
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", *python(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if "unshare: " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split() == ["elsewhere", "False"], done.stderr


def test_an_old_queue_is_too_small_though_the_limits_were_raised(raised_limits, queue):
    queue.max_size = 16384
    with pytest.raises(sysv_ipc.BusyError):
        queue.send(bytes(payload_size("topk")), block=False)
    found = examined(queue, channels=("topk",))["queue-too-small"]
    assert found.severity == "error"
    assert found.data == {"max_bytes": 16384, "needed": 88072}
    assert [found.remedy[0], found.remedy[1]] == ["stop the service", f"ipcrm -q {queue.id}"]
    found = examined(queue)["queue-too-small"]  # nobody said what it carries
    assert found.severity == "warning"
    assert "if it carries topk or spec_topk" in found.seen
    assert "queue-too-small" not in examined(queue, channels=("plain",))
    queue.max_size = 88072
    assert "queue-too-small" not in examined(queue, channels=("topk",))
    queue.max_size = 1 << 20
    assert "queue-too-small" not in examined(queue)


@each("number, end", [(5, "7 (key 0x00000007)"), (6, " and 1 more")])
def test_of_unknown_queues_the_sixth_is_counted_only(number, end):
    others = [QueueInfo(7, 7, 0o600, 0, 0, 0, None, 0, 0, 0, 0)] * number
    assert queue_checks._others(SimpleNamespace(others=others)).seen.endswith(end)


def test_a_message_that_is_too_long_for_its_channel_or_for_msgmax(raised_limits, queue):
    queue.send(bytes(payload_size("topk")))
    found = examined(queue, channels=("plain",))["message-too-long"]
    assert found.severity == "error"
    assert "topk" in found.data["adds_up_as"]
    assert (found.data["size"], queue.current_messages) == (88072, 1)
    assert not {"message-too-long", "message-malformed"} & set(examined(queue, channels=("topk",)))
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    assert examined(queue, channels=("plain",))["message-too-long"].severity == "error"
    assert examined(queue, channels=("spec_topk",))["message-not-seen"].severity == "info"


def test_a_malformed_first_message_and_good_ones(queue, goldens):
    queue.send(b"\xff" * 300)
    found = examined(queue)["message-malformed"]
    assert found.severity == "error"
    assert found.data == {"size": 300, "mtype": 1, "adds_up_as": []}
    assert "fd-postproc record" in found.remedy[0]
    queue.receive()
    queue.send(fp.encode(fp.Step.from_arrays("plain", [1], [5])), type=7)
    assert "message-malformed" in examined(queue)
    queue.receive()
    for name in ("plain_b3_stop_s7", "plain_b1_s1001"):
        queue.send(goldens[name].payload)
    assert set(examined(queue)) == set(examined(queue, channels=("plain",))) == {"queue"}


def test_a_queue_that_others_may_use_or_another_users(queue):
    queue.mode = 0o666
    found = examined(queue)
    assert (found["queue-mode"].severity, found["queue"].severity) == ("info", "ok")
    assert "0666" in examined(queue)["queue-mode"].seen
    if os.geteuid() != 0:
        pytest.skip("only root can give a queue away")
    queue.uid = 65534
    assert examined(queue)["queue-owner"].severity == "warning"
