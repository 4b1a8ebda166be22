"""The doctor: every finding with the condition made for real, on private queues."""

import importlib.metadata
import json
import os
import pty
import subprocess
import tempfile
import time
from dataclasses import replace

import pytest
import sysv_ipc
from children import FD_POSTPROC, python

import fd_postproc as fp
from fd_postproc import doctor, queues
from fd_postproc._core import CHANNELS, payload_size
from fd_postproc.cli import main
from fd_postproc.doctor import Load, Scope, removal
from fd_postproc.doctor.environment import check_cuda, check_environment, check_fastdeploy
from fd_postproc.doctor.limits import check_limits, example_step, fragments
from fd_postproc.doctor.plugins import NAME, WORKER_GROUP
from fd_postproc.doctor.processes import Waiting
from fd_postproc.queues import KernelLimits

PROGRAM = [FD_POSTPROC, "doctor"]
CLONE_NEWIPC = 0x08000000
ID = 8002


@pytest.fixture
def queue(queue_key):
    """One private queue, 16,384 bytes unless limits were raised."""
    return sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)


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


def by_hand(code, *arguments, **options):
    """Start another process with sysv_ipc and fd_postproc at hand."""
    source = f"import sys, time, sysv_ipc\nimport fd_postproc as fp\n{code}"
    return subprocess.Popen(python(source, *arguments), stdin=subprocess.PIPE, **options)


def dead_user(key, code="q.send(b'x' * 100)\nq.receive()"):
    """A process that uses a queue and is gone."""
    process = by_hand(f"q = sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=1 << 20)\n{code}", key)
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    return process.pid


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


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
    return found


def scope_of(queue, **options):
    return Scope(keys=frozenset([queue.key]), **options)


def examined(queue, **options):
    """Findings about a queue by code."""
    findings = doctor.examine(scope_of(queue, **options))
    return {finding.code: finding for finding in findings if finding.msqid == queue.id}


# Limits


def limit_findings(limits, **options):
    return {finding.subject: finding for finding in check_limits(limits, Scope(**options))}


def test_default_limits_are_too_small_for_fastdeploys_logprobs(default_limits):
    found = limit_findings(queues.kernel_limits())
    assert {name: finding.severity for name, finding in found.items()} == {
        "plain": "ok",
        "topk": "warning",
        "spec": "ok",
        "spec_topk": "warning",
    }
    for channel in CHANNELS:
        assert found[channel].data["full"] == payload_size(channel)
    remedy = "\n".join(found["spec_topk"].remedy)
    assert "sysctl -w kernel.msgmax=1048576 kernel.msgmnb=268435456" in remedy
    assert "--sysctl kernel.msgmax=1048576 --sysctl kernel.msgmnb=268435456" in remedy
    assert "--ipc" in remedy
    assert "remove its queues" in remedy


def test_the_remedy_lets_every_channel_through_and_lowers_nothing(raised_limits):
    before = KernelLimits(8192, 1 << 30, 32000)
    remedy = limit_findings(before)["spec_topk"].remedy[0]
    wanted = dict(word.split("=") for word in remedy.split() if "=" in word)
    assert int(wanted["kernel.msgmnb"]) == 1 << 30
    for name, value in wanted.items():
        with open(f"/proc/sys/{name.replace('.', '/')}", "w") as file:
            file.write(value)
    assert {finding.severity for finding in limit_findings(queues.kernel_limits()).values()} == {"ok"}


def test_raised_limits_are_enough(raised_limits):
    found = limit_findings(queues.kernel_limits(), stock=True)
    assert {finding.severity for finding in found.values()} == {"ok"}


def test_too_small_limits_are_errors_where_fastdeploys_ops_send():
    found = limit_findings(KernelLimits(8192, 16384, 32000), stock=True)
    assert [found[channel].severity for channel in ("plain", "topk")] == ["ok", "error"]


def test_msgmax_raised_alone_hangs(default_limits, queue):
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("1048576")
    with pytest.raises(sysv_ipc.BusyError):
        queue.send(bytes(payload_size("topk")), block=False)
    found = limit_findings(queues.kernel_limits())["topk"]
    assert found.code == "limits-hang"
    assert "wait for ever" in found.seen


def test_sizes_are_those_of_encoded_steps():
    load = Load(batch=10, accepted=3, columns=5)
    found = limit_findings(KernelLimits(8192, 16384, 32000), load=load)
    for channel in CHANNELS:
        step = example_step(channel, load)
        assert step.rows == (30 if channel.startswith("spec") else 10)
        assert step.cols == (5 if channel.endswith("topk") else 1)
        assert found[channel].data["packed"] == len(fp.encode(step))


def test_compact_frames_always_fit():
    found = limit_findings(KernelLimits(8192, 16384, 32000))
    data = found["spec_topk"].data
    assert data["compact"] == len(fp.encode(example_step("spec_topk", Load()), "compact"))
    assert data["fragments"] == -(-(data["compact"] - 64) // (8192 - 64))
    assert f"in {data['fragments']} fragments" in found["spec_topk"].seen
    assert fragments(8192, 8192) == 1
    assert fragments(8193, 8192) == 2
    wide = limit_findings(KernelLimits(8192, 16384, 32000), load=Load(batch=300))
    assert wide["spec"].data["packed"] is None
    assert wide["spec"].data["compact"] > 0


@pytest.mark.parametrize("channel", ["topk", "spec_topk"])
def test_a_sender_takes_as_many_fragments_as_were_foretold(raised_limits, queue_key, channel):
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    foretold = limit_findings(queues.kernel_limits())[channel].data["fragments"]
    with fp.Sender(channel, key=queue_key, dialect="compact") as sender:
        sender.send(example_step(channel, Load()), timeout=0)
        assert sender.stats["messages"] == foretold > 1
    queue = sysv_ipc.MessageQueue(queue_key)
    assert set(examined(queue, channels=(channel,))) == {"queue"}  # a fragment is no malformed message
    assert set(examined(queue)) == {"queue"}


# Queues


def test_a_healthy_queue_with_live_users(queue, live_user):
    user = live_user(
        "q = sysv_ipc.MessageQueue(int(sys.argv[1])); q.send(b'x' * 8); q.receive(); q.send(b'x' * 8)",
        queue.key,
    )
    until(lambda: queue.last_send_pid == user.pid and queue.current_messages == 1)
    queue.receive()
    found = examined(queue)
    assert set(found) == {"queue"}
    assert found["queue"].severity == "ok"
    assert f"sender: process {user.pid} (" in found["queue"].seen
    assert found["queue"].data["sender_state"] == "alive"
    assert found["queue"].data["receiver_state"] == "alive"


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


def test_a_sender_that_waits_is_named(queue, live_user):
    queue.send(fp.encode(fp.Step.from_arrays("plain", [1] * 500, range(500))))
    sender = live_user(
        "q = sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=1 << 20)\n"
        "while True: q.send(b'\\1' + bytes(7999))",
        queue.key,
    )
    found = until(lambda: examined(queue).get("queue-full"))
    assert found.severity == "error"
    until(lambda: f"process {sender.pid} (" in examined(queue)["queue-full"].seen)


def test_what_dead_processes_left(queue):
    pid = dead_user(queue.key, "for n in range(3): q.send(b'\\1' + bytes(7))\nq.receive()")
    found = examined(queue)
    left = found["queue-leftover"]
    assert left.severity == "warning"
    assert "2 messages of theirs first" in left.seen
    assert f"process {pid} (dead)" in found["queue"].seen
    assert "--remove" in left.remedy[0]


def test_an_unused_queue_is_no_leftover(queue):
    snapshot = doctor.take(scope_of(queue))
    assert [each.info.msqid for each in snapshot.queues] == [queue.id]
    assert doctor.leftovers(snapshot) == []
    assert "queue-leftover" not in examined(queue)


def test_a_live_user_on_either_side_keeps_the_queue(queue):
    dead_user(queue.key)
    queue.send(b"\1" + bytes(7))  # this process is now the last sender
    assert doctor.leftovers(doctor.take(scope_of(queue))) == []
    found = examined(queue)
    assert found["queue-no-reader"].severity == "warning"
    dead_user(queue.key, "q.send(bytes(8))")
    queue.receive()
    assert doctor.leftovers(doctor.take(scope_of(queue))) == []
    assert "queue-no-sender" in examined(queue)


def test_a_process_that_waits_keeps_the_queue(queue, live_user):
    dead_user(queue.key)
    reader = live_user("fp.Receiver('plain', key=int(sys.argv[1])).receive()", queue.key)
    scope = scope_of(queue)
    until(lambda: not doctor.leftovers(doctor.take(scope)))
    assert f"process {reader.pid} (" in examined(queue)["queue"].seen
    assert "waits to receive" in examined(queue)["queue"].seen


def test_a_new_reader_that_waits_takes_the_place_of_a_dead_one(queue, live_user):
    queue.send(bytes(8))
    dead_user(queue.key, "q.receive()")
    assert "queue-no-reader" in examined(queue)
    live_user("fp.Receiver('plain', key=int(sys.argv[1])).receive()", queue.key)
    until(lambda: examined(queue)["queue"].data["waiting"])
    assert set(examined(queue)) == {"queue"}


def test_a_process_of_another_user_is_alive():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os\nfrom fd_postproc.doctor.processes import last_user\nparent = os.getppid()\n"
        "os.setuid(65534)\nprint(last_user(parent, int(time.time())).state)"
    )
    process = by_hand(code, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=20)[0].strip() == "alive"


def test_processes_that_cannot_be_seen_are_told_of_and_prevent_removal(queue, monkeypatch):
    """Ubuntu's yama hides which queue a process of the same user waits in.  It is not everywhere: by hand."""
    dead_user(queue.key)
    snapshot = doctor.take(scope_of(queue))
    hidden = Waiting(1234, "engine", "receive", None, None)
    findings = doctor.examine(scope_of(queue), replace(snapshot, unseen=[hidden]))
    (found,) = [each for each in findings if each.code == "waiting-unseen"]
    assert "1234 (engine)" in found.seen
    monkeypatch.setattr(removal, "waiting", lambda: [hidden])
    (left,) = doctor.leftovers(snapshot)
    assert "may not see" in doctor.remove_leftover(left)
    assert exists(queue)


def test_a_zombie_is_dead(queue, live_user):
    process = by_hand("q = sysv_ipc.MessageQueue(int(sys.argv[1])); q.send(bytes(8)); q.receive()", queue.key)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert "queue-leftover" in examined(queue)
    process.wait()


def in_namespaces(code, *arguments, flags):
    """Run code as root of new namespaces; skip where that is not permitted."""
    command = ["unshare", *flags, *python(code, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if "unshare failed" in done.stderr or "unshare: " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout


REUSE = """
import os, sys, time, sysv_ipc
from fd_postproc import doctor
q = sysv_ipc.MessageQueue(int(sys.argv[1]))
def child():
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write("4241")
    if (pid := os.fork()) == 0:
        return True
    assert pid == 4242
if child():
    q.send(bytes(8)); q.receive(); os._exit(0)
os.wait()
time.sleep(float(sys.argv[2]))
if child():
    time.sleep(60); os._exit(0)
snapshot = doctor.take(doctor.Scope(keys=frozenset([q.key])))
print(snapshot.queues[0].sender.state, snapshot.queues[0].receiver, len(doctor.leftovers(snapshot)))
os.kill(4242, 9); os.wait()
"""


@pytest.mark.parametrize(("pause", "state", "left"), [(3.2, "reused", 1), (0, "alive", 0)])
def test_a_reused_process_number_is_not_the_old_process(queue, pause, state, left):
    """Only a process that started clearly after the last use counts as another one."""
    flags = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    out = in_namespaces(REUSE, queue.key, pause, flags=flags).split()
    assert (out[0], out[-1]) == (state, str(left))
    assert "4242" in out


REVIVED = """
import os, sys, time, sysv_ipc
from fd_postproc import doctor
q = sysv_ipc.MessageQueue(int(sys.argv[1]))
for round in range(2):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write("4241")
    if os.fork() == 0:
        if round == 0:
            q.send(bytes(8)); q.receive()
        else:
            time.sleep(60)
        os._exit(0)
    if round == 0:
        os.wait()
        left, = doctor.leftovers(doctor.take(doctor.Scope(keys=frozenset([q.key]))))
print(doctor.remove_leftover(left))
os.kill(4242, 9); os.wait()
"""


def test_a_number_that_is_taken_again_before_removal_keeps_the_queue(queue):
    """So soon after the last use, nobody can tell the two processes apart."""
    flags = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    assert "a process with its last user's number lives" in in_namespaces(REVIVED, queue.key, flags=flags)
    assert exists(queue)


def test_a_process_of_another_pid_namespace_is_never_taken_for_dead(queue):
    queue.send(bytes(8))
    queue.receive()
    code = """
import sys
from fd_postproc import doctor
snapshot = doctor.take(doctor.Scope(keys=frozenset([int(sys.argv[1])])))
print(snapshot.queues[0].sender.state, len(doctor.leftovers(snapshot)))
"""
    out = in_namespaces(code, queue.key, flags=["--pid", "--fork", "--mount-proc"])
    assert out.split() == ["elsewhere", "0"]


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
    queue.max_size = 1 << 20
    assert "queue-too-small" not in examined(queue)


def test_a_sender_that_waits_for_ever_is_proof(raised_limits, queue, live_user):
    queue.max_size = 16384
    live_user(
        "sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=1 << 20).send(bytes(88072))", queue.key
    )
    until(lambda: examined(queue)["queue"].data["waiting"])
    found = examined(queue)["queue-too-small"]
    assert found.severity == "error"
    assert "88,072 bytes into a queue that holds 16,384: it waits for ever" in found.seen
    assert "queue-full" not in examined(queue)


def test_a_stale_message_that_is_too_long(raised_limits, queue):
    queue.send(bytes(payload_size("topk")))
    found = examined(queue, channels=("plain",))["message-too-long"]
    assert found.severity == "error"
    assert "topk" in found.data["adds_up_as"]
    assert found.data["size"] == 88072
    assert queue.current_messages == 1
    assert not {"message-too-long", "message-malformed"} & set(examined(queue, channels=("topk",)))


def test_a_message_longer_than_msgmax_now(raised_limits, queue):
    queue.send(bytes(payload_size("topk")))
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    assert examined(queue, channels=("plain",))["message-too-long"].severity == "error"
    assert examined(queue, channels=("spec_topk",))["message-not-seen"].severity == "info"


def test_a_malformed_first_message(queue):
    queue.send(b"\xff" * 300)
    found = examined(queue)["message-malformed"]
    assert found.severity == "error"
    assert found.data == {"size": 300, "mtype": 1, "adds_up_as": []}
    assert "fd-postproc record" in found.remedy[0]


def test_a_message_of_another_type(queue):
    queue.send(fp.encode(fp.Step.from_arrays("plain", [1], [5])), type=7)
    assert "message-malformed" in examined(queue)


def test_good_messages_are_not_complained_about(queue, goldens):
    for name in ("plain_b3_stop_s7", "plain_b1_s1001"):
        queue.send(goldens[name].payload)
    assert set(examined(queue)) == {"queue"}
    assert set(examined(queue, channels=("plain",))) == {"queue"}


def test_a_queue_that_others_may_use(queue):
    queue.mode = 0o666
    assert examined(queue)["queue-mode"].severity == "info"
    assert "0666" in examined(queue)["queue-mode"].seen


def test_a_queue_of_another_user(queue):
    if os.geteuid() != 0:
        pytest.skip("only root can give a queue away")
    queue.uid = 65534
    assert examined(queue)["queue-owner"].severity == "warning"


# Keys


def test_queues_are_recognised_by_their_keys(default_limits, run):
    shm = queues.open_queue(queues.locate("topk", ID))
    spec = queues.open_queue(queues.locate("spec", ID))
    old = queues.open_queue(queues.locate("topk", ID, ftok="libc"))
    foreign = queues.open_queue(0x1234567)
    snapshot = doctor.take(Scope())
    known = {queue.info.msqid: queue for queue in snapshot.queues}
    assert set(known) == {shm, spec, old}
    assert [one.queue_id for one in known[shm].identities] == [ID]
    assert known[shm].channels(Scope()) == ("plain", "topk", "spec_topk")
    assert known[spec].channels(Scope()) == ("spec",)
    assert known[old].identities[0].ftok == "libc"
    assert known[old].identities[0].queue_id == ID % 256
    assert [info.msqid for info in snapshot.others] == [foreign]
    named = doctor.take(Scope(ids=frozenset([ID])))
    assert {queue.info.msqid for queue in named.queues} == {shm, spec, old}
    assert named.others == []
    assert doctor.take(Scope(ids=frozenset([ID + 1]))).queues == []
    assert [queue.info.msqid for queue in doctor.take(Scope(channels=("spec",))).queues] == [spec]
    status, out, _ = run()
    assert status == 0
    assert f"queue {shm} (id {ID}, /dev/shm, key " in out
    assert "1 queue of unknown programs" in out
    assert str(foreign) in out


def directories(parent, number):
    """Directories that give different keys, from each other and from the one we are in."""
    found = {queues.locate("spec", ID): None}
    for n in range(64):
        folder = parent / str(n)
        folder.mkdir()
        found.setdefault(queues.locate("spec", ID, path=str(folder)), folder)
        if len(found) > number:
            break
    return list(found.values())[1:]


def test_keys_of_another_directory(default_limits, tmp_path):
    (folder,) = directories(tmp_path, 1)
    msqid = queues.open_queue(queues.locate("spec", ID, path=str(folder)))
    assert not [queue for queue in doctor.take(Scope()).queues if queue.info.msqid == msqid]
    known = doctor.take(Scope(paths=(str(folder),))).queues
    assert [queue.info.msqid for queue in known] == [msqid]


def test_two_sides_in_two_directories_never_meet(default_limits, tmp_path, live_user):
    first, second = directories(tmp_path, 2)
    sender = live_user(
        "fp.queues.open_queue(key := fp.queues.locate('spec', 8002))\n"
        "sysv_ipc.MessageQueue(key).send(bytes(8))",
        cwd=first,
    )
    reader = live_user("fp.Receiver('spec', 8002).receive()", cwd=second)
    scope = Scope(ids=frozenset([ID]))

    def split():
        return [finding for finding in doctor.examine(scope) if finding.code == "key-split"]

    (found,) = until(split)
    assert found.severity == "error"
    assert found.data["senders"] == [sender.pid]
    assert found.data["readers"] == [reader.pid]
    assert str(first) in found.seen
    assert str(second) in found.seen


def test_two_whole_services_with_one_id_are_no_split(default_limits, tmp_path, live_user):
    code = (
        "fp.queues.open_queue(key := fp.queues.locate('spec', 8002))\n"
        "q = sysv_ipc.MessageQueue(key)\nq.send(bytes(8))\nq.receive()"
    )
    for folder in directories(tmp_path, 2):
        live_user(code, cwd=folder)
    until(lambda: sum(bool(info.received_at) for info in queues.list_queues()) == 2)
    findings = doctor.examine(Scope(ids=frozenset([ID])))
    assert len([each for each in findings if each.code == "queue"]) == 2
    assert not [each for each in findings if each.code == "key-split"]


def test_two_directories_only_matter_on_spec(default_limits, tmp_path, live_user):
    live_user("fp.Receiver('plain', 8002).receive()", cwd=tmp_path)
    queue = sysv_ipc.MessageQueue(queues.locate("plain", ID), sysv_ipc.IPC_CREAT)
    queue.send(b"\xff" * 5)  # malformed: the reader takes it and raises
    live_user("fp.Receiver('plain', 8002).receive()", cwd=tmp_path)
    scope = Scope(ids=frozenset([ID]))

    def differs():
        return {finding.code: finding for finding in doctor.examine(scope)}.get("cwd-differs")

    found = until(differs)
    assert found.severity == "info"
    assert str(tmp_path) in found.seen
    codes = {finding.code for finding in doctor.examine(Scope(channels=("plain",), ids=scope.ids))}
    assert "cwd-differs" not in codes


def test_two_mounts_of_dev_shm(default_limits, live_user):
    if subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("needs a mount namespace")
    code = (
        "import subprocess, os\n"
        "os.chdir('/')\n"
        "libc = __import__('ctypes').CDLL(None)\n"
        "assert libc.unshare(0x20000) == 0\n"
        "subprocess.run(['mount', '--make-rprivate', '/'], check=True)\n"
        "before = fp.queues.locate('plain', 8002)\n"
        "while fp.queues.locate('plain', 8002) == before:  # only 4 bits of the device count\n"
        "    subprocess.run(['mount', '-t', 'tmpfs', 'own', '/dev/shm'], check=True)\n"
        "fp.Receiver('plain', 8002).receive()"
    )
    reader = live_user(code)
    sysv_ipc.MessageQueue(queues.locate("plain", ID), sysv_ipc.IPC_CREAT, mode=0o600).send(bytes(8))
    scope = Scope(ids=frozenset([ID]))
    found = until(lambda: [each for each in doctor.examine(scope) if each.code == "key-split"])
    assert found[0].data["kind"] == "shm"
    assert found[0].data["readers"] == [reader.pid]
    assert "mounts of /dev/shm" in found[0].seen


def test_ids_that_share_a_key(default_limits):
    def collisions(*ids):
        findings = doctor.examine(Scope(ids=frozenset(ids)))
        return [(found.severity, found.data["ftok"]) for found in findings if found.code == "key-collision"]

    assert collisions(8002, 8258) == [("warning", "libc")]
    assert collisions(8002, 8002 + (1 << 20)) == [("error", "custom")]
    assert collisions(8002, 8003) == []


def test_a_deleted_working_directory_is_shown_as_such(default_limits, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (found,) = [each for each in doctor.examine(Scope(ids=frozenset([ID]))) if each.code == "keys"]
    assert "./ (deleted)" in found.seen


def test_a_missing_dev_shm():
    code = """
import os
from fd_postproc import doctor
assert os.system("mount --make-rprivate / && mount -t tmpfs own /dev") == 0
print([(found.severity, found.subject) for found in doctor.examine() if found.code == "place-missing"])
"""
    assert in_namespaces(code, flags=["-m"]).strip() == "[('error', '/dev/shm')]"


def test_a_directory_with_the_key_of_dev_shm(default_limits):
    """Only 8 bits of the inode count: one of 256 directories there has the same."""
    queues.open_queue(queues.locate("plain", ID))
    wanted = os.stat("/dev/shm").st_ino & 0xFF
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for n in range(2000):
            path = os.path.join(folder, str(n))
            os.mkdir(path)
            if os.stat(path).st_ino & 0xFF == wanted:
                break
        findings = doctor.examine(Scope(ids=frozenset([ID]), paths=(path,)))
    (found,) = [each for each in findings if each.code == "key-collision"]
    assert path in found.seen


# Environment, FastDeploy, CUDA


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("INFERENCE_MSG_QUEUE_ID", "eight", "not a decimal"),
        ("INFERENCE_MSG_QUEUE_ID", "99999999999", "not a decimal"),
        ("INFERENCE_MSG_ID", "2", "other than 2"),
        ("INFERENCE_MSG_ID", "-1", "not a decimal"),
        ("INFERENCE_MSG_ID", "x", "not a decimal"),
        ("FD_POSTPROC_QUEUE_MODE", "777", "is not octal"),
        ("FD_POSTPROC_DIALECT", "new", "not one of auto"),
        ("FD_POSTPROC_PEER", "yes", "compact/1"),
        ("FD_POSTPROC_PEER", "compact/10", "compact/1"),
    ],
)
def test_bad_variables_are_errors(run, monkeypatch, queue, name, value, fault):
    monkeypatch.setenv(name, value)
    (found,) = check_environment()
    assert found.severity == "error"
    assert fault in found.seen
    assert (found.subject, found.code) == (name, "variable-invalid")
    assert repr(value) in found.seen
    status, out, _ = run("--queue-id", f"key:{queue.key:#x}")
    assert status == 1
    assert name in out


def test_good_variables(monkeypatch):
    good = {
        "INFERENCE_MSG_QUEUE_ID": "8002",
        "INFERENCE_MSG_ID": "1",
        "FD_POSTPROC_QUEUE_MODE": "666",
        "FD_POSTPROC_DIALECT": "auto",
        "FD_POSTPROC_PEER": "compact/1",
    }
    for name, value in good.items():
        monkeypatch.setenv(name, value)
    (found,) = check_environment()
    assert found.severity == "ok"
    assert "INFERENCE_MSG_QUEUE_ID=8002" in found.seen


def test_misspelt_variables_and_zeromq(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALEKT", "compact")
    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    assert [(found.severity, found.code) for found in check_environment()] == [
        ("warning", "variable-unknown"),
        ("warning", "zeromq"),
    ]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A function that installs a distribution, as far as its metadata goes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FD_PLUGINS", raising=False)

    def install(name, version, points="", files=()):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("raise SystemExit('FastDeploy was imported')")

    return install


def fastdeploy_codes():
    return [finding.code for finding in check_fastdeploy()]


def test_the_version_of_fastdeploy_without_importing_it(site):
    site("fastdeploy", "3.1.1")  # an unrelated project of this name
    assert "3.1.1" not in check_fastdeploy()[0].seen
    site("fastdeploy-gpu", "2.4.0", files=["fastdeploy/__init__.py", "fastdeploy/output/token_processor.py"])
    assert "fastdeploy-gpu 2.4.0" in check_fastdeploy()[0].seen


def test_two_fastdeploys(site):
    site("fastdeploy-gpu", "2.4.0", files=["fastdeploy/output/token_processor.py"])
    site("fastdeploy-xpu", "2.5.0")
    assert fastdeploy_codes()[0] == "fastdeploy-twice"


ENGINE_POINT = "[fastdeploy.token_processor_plugins]\nfd_postproc = fd_postproc.plugin:get\n"
WORKER_POINT = "[fastdeploy.model_register_plugins]\nfd_postproc = fd_postproc.plugin:register\n"


@pytest.fixture
def no_plugins(monkeypatch):
    """As if nothing were installed but what the test installs."""
    real = importlib.metadata.entry_points

    def entry_points(group):
        return [point for point in real(group=group) if ":" in point.value and point.dist.version == "1"]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.delenv("FD_POSTPROC_DISABLE", raising=False)


def test_the_engine_sides_plugins(site, no_plugins, monkeypatch):
    assert fastdeploy_codes()[1] == "plugin-none"
    site("other", "1", "[fastdeploy.token_processor_plugins]\nanother = other:get\n")
    assert fastdeploy_codes()[1] == "plugin"
    assert "another project's: another (other:get)" in check_fastdeploy()[1].seen
    site("ours", "1", ENGINE_POINT)
    found = check_fastdeploy()[1]
    assert (found.code, found.severity) == ("plugin-several", "warning")
    assert "FD_PLUGINS=fd_postproc" in found.remedy[0]
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc")
    found = check_fastdeploy()[1]
    assert (found.code, found.data["active"]) == ("plugin", True)
    monkeypatch.setenv("FD_POSTPROC_DISABLE", "1")
    found = check_fastdeploy()[1]
    assert (found.code, found.data["active"]) == ("plugin-disabled", False)
    monkeypatch.setenv("FD_PLUGINS", "nothing")
    assert fastdeploy_codes()[1] == "plugin-not-allowed"
    assert "FD_PLUGINS=fd_postproc" in check_fastdeploy()[1].remedy[0]


def test_the_worker_sides_plugins(site, no_plugins, monkeypatch):
    found = check_fastdeploy()[2]
    assert (found.code, found.severity, found.data["active"]) == ("worker-missing", "warning", False)
    site("other", "1", "[fastdeploy.model_register_plugins]\nanother = other:get\n")
    assert fastdeploy_codes()[2] == "worker-missing"
    site("ours", "1", WORKER_POINT)
    found = check_fastdeploy()[2]
    assert (found.code, found.data["active"]) == ("worker", True)
    assert "FD_PLUGINS is unset" in found.seen
    for names, remedy in ("another", "FD_PLUGINS=another,fd_postproc"), ("", "FD_PLUGINS=fd_postproc"):
        monkeypatch.setenv("FD_PLUGINS", names)
        found = check_fastdeploy()[2]
        assert (found.code, found.remedy, found.data["active"]) == ("worker-not-allowed", (remedy,), False)
    monkeypatch.setenv("FD_PLUGINS", "another,fd_postproc")
    found = check_fastdeploy()[2]
    assert (found.code, found.severity, found.data["active"]) == ("worker", "info", True)
    monkeypatch.setenv("FD_POSTPROC_DISABLE", "1")
    found = check_fastdeploy()[2]
    assert (found.code, found.data["active"]) == ("worker-disabled", False)


def test_our_entry_point_is_installed_and_loads():
    [point] = [one for one in importlib.metadata.entry_points(group=WORKER_GROUP) if one.name == NAME]
    assert callable(point.load())


@pytest.mark.parametrize(
    ("why", "version", "severity", "words"),
    [
        ("", (12, 2), "ok", "a driver for CUDA 12.2 and a device: the save ops take its tensors"),
        (
            "no CUDA driver: not found",
            None,
            "info",
            "no CUDA driver: not found; tensors in host memory need none",
        ),
        ("a CUDA driver but no device: ...", (12, 2), "info", "but no device"),
        ("the driver is for CUDA 11.7; ...", (11, 7), "warning", "the driver is for CUDA 11.7"),
    ],
)
def test_cuda_is_one_line(why, version, severity, words, monkeypatch):
    monkeypatch.setattr("fd_postproc.doctor.environment.why_no_cuda", lambda: why)
    monkeypatch.setattr("fd_postproc.doctor.environment.driver_version", lambda: version)
    (found,) = check_cuda()
    assert found.severity == severity
    assert words in found.seen
    assert found.data["available"] is (why == "")


def test_cuda_as_it_is_here():
    (found,) = check_cuda()
    assert found.data["available"] is fp.cuda_available()


# The command


def test_exit_status_and_filters(run, queue, monkeypatch):
    named = ("--queue-id", f"key:{queue.key:#x}", "--channel", "plain")
    status, out, _ = run(*named)
    assert status == 0
    assert "Nothing is wrong." in out
    queue.send(bytes(8))
    dead_user(queue.key, "q.receive()\nq.send(bytes(8))")
    assert run(*named)[0] == 0
    assert run(*named, "--strict")[0] == 1
    queue.send(b"\xff" * 300)
    queue.receive()
    status, out, _ = run(*named)
    assert status == 1
    assert "1 error" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--batch", "513"], "at most 512"),
        (["--accepted", "7"], "at most 6"),
        (["--columns", "22"], "at most 21"),
        (["--path", "/nonexistent"], "no such directory"),
        (["--queue-id", "x"], "'x'"),
        (["--yes"], "--remove"),
        (["--channel", "all"], "all"),
    ],
)
def test_wrong_usage(run, arguments, why):
    status, _, err = run(*arguments)
    assert status == 2
    assert why in err


def test_json(run, queue):
    status, out, _ = run("--json", "--queue-id", f"key:{queue.key:#x}")
    document = json.loads(out)
    assert list(document) == ["schema", "version", "exit_status", "worst", "limits", "removed", "findings"]
    assert (document["schema"], document["exit_status"], status) == (1, 0, 0)
    fields = {"severity", "group", "code", "subject", "seen", "remedy", "msqid", "data"}
    assert all(set(finding) == fields for finding in document["findings"])
    assert {finding["severity"] for finding in document["findings"]} <= set(doctor.SEVERITIES)
    assert any(finding["msqid"] == queue.id for finding in document["findings"])


def test_piped_output_is_one_line_a_finding(queue):
    done = subprocess.run([*PROGRAM, "--queue-id", f"key:{queue.key:#x}"], capture_output=True, text=True)
    (line,) = [line for line in done.stdout.splitlines() if f"queue {queue.id} " in line]
    assert "empty" in line
    assert line.endswith("receiver: nobody yet")
    assert "\x1b" not in done.stdout


def asked(answers, *arguments, columns=100, before_answer=lambda: None):
    """The command in a terminal, where a person answers."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            seen += part
            if answers and seen.count(b"[y/N]") > len(asked.given):
                before_answer()
                asked.given.append(answers.pop(0))
                os.write(ours, asked.given[-1].encode())
        os.close(ours)
    asked.given = []
    return seen.decode(), process.returncode


asked.given = []


def exists(queue):
    return any(info.msqid == queue.id for info in queues.list_queues())


def test_a_leftover_is_removed_after_yes(queue):
    dead_user(queue.key)
    seen, status = asked(["y\n"], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert "Remove it?" in seen
    assert not exists(queue)
    assert status == 0


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_a_leftover_stays_after_anything_else(queue, answer):
    dead_user(queue.key)
    asked([answer], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert exists(queue)


def test_a_leftover_that_is_used_before_the_answer_stays(queue):
    dead_user(queue.key)
    seen, _ = asked(
        ["y\n"],
        "--remove",
        "--queue-id",
        f"key:{queue.key:#x}",
        before_answer=lambda: queue.send(bytes(8)),
    )
    assert exists(queue)
    assert "kept, it was used in the meantime" in seen


def test_a_reader_that_begins_to_wait_before_the_answer_keeps_it(queue, live_user):
    dead_user(queue.key)
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    live_user("fp.Receiver('plain', key=int(sys.argv[1])).receive()", queue.key)
    until(lambda: examined(queue)["queue"].data["waiting"])
    assert doctor.remove_leftover(left) == "a process waits in it now"
    assert exists(queue)


def test_a_queue_that_somebody_else_removes(queue):
    dead_user(queue.key)
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    queue.remove()
    assert doctor.remove_leftover(left) == "it is gone already"


def test_remove_without_asking(run, queue_keys):
    kept, gone = (sysv_ipc.MessageQueue(queue_keys(), sysv_ipc.IPC_CREX) for _ in range(2))
    dead_user(gone.key)
    dead_user(kept.key)
    kept.send(bytes(8))
    named = ("--queue-id", f"key:{kept.key:#x}", "--queue-id", f"key:{gone.key:#x}")
    status, out, err = run("--remove", "--yes", "--json", *named)
    assert status == 0
    document = json.loads(out)
    assert document["removed"] == [gone.id]
    assert not [finding for finding in document["findings"] if finding["msqid"] == gone.id]
    assert f"queue {gone.id}" in err
    assert exists(kept)
    assert not exists(gone)
    assert "No queue was left" in run("--remove", "--yes", *named[:2])[2]


def test_a_queue_that_only_one_side_used_is_not_removed_unasked(run, queue):
    dead_user(queue.key, "q.send(bytes(8))")
    _, _, err = run("--remove", "--yes", "--queue-id", f"key:{queue.key:#x}")
    assert "only one side ever used it" in err
    assert exists(queue)
    asked(["yes\n"], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert not exists(queue)


def test_a_queue_open_to_others_is_not_removed_unasked_without_root(run, queue):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    dead_user(queue.key)
    queue.uid, queue.mode = 65534, 0o666
    run("--help")  # imports what the other user may not be able to read
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    assert left.doubt is None
    os.seteuid(65534)
    try:
        assert "only root sees" in left.doubt
        _, _, err = run("--remove", "--yes", "--queue-id", f"msqid:{queue.id}")
    finally:
        os.seteuid(0)
    assert "kept, other users may use it" in err
    assert exists(queue)


def test_unknown_queues_are_never_removed(default_limits, run):
    foreign = sysv_ipc.MessageQueue(0x1234567, sysv_ipc.IPC_CREX)
    dead_user(foreign.key)
    run("--remove", "--yes")
    assert exists(foreign)


def test_remove_refuses_without_a_terminal(queue):
    dead_user(queue.key)
    done = subprocess.run([*PROGRAM, "--remove"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert exists(queue)


@pytest.mark.parametrize("columns", [40, 100])
def test_a_narrow_terminal_loses_nothing(queue, columns):
    queue.send(b"\xff" * 300)
    seen, status = asked([], "--queue-id", f"key:{queue.key:#x}", columns=columns)
    assert status == 1
    assert "error" in seen
    assert "adds up under none" in " ".join(seen.split())
    assert "Traceback" not in seen


def test_control_characters_of_process_names_are_not_printed(queue, live_user):
    process = live_user(
        "open('/proc/self/comm', 'w').write('\\x1b[31mred')\n"
        "sysv_ipc.MessageQueue(int(sys.argv[1])).send(bytes(8))",
        queue.key,
    )
    until(lambda: queue.last_send_pid == process.pid)
    done = subprocess.run([*PROGRAM, "--queue-id", f"key:{queue.key:#x}"], capture_output=True, text=True)
    assert "?[31mred" in done.stdout
    assert "\x1b" not in done.stdout


def test_hundreds_of_queues_stay_quick(default_limits, run):
    for n in range(300):
        queues.open_queue(queues.locate("topk", 9000 + n))
        queues.open_queue(0x1234000 + n)
    begun = time.monotonic()
    status, out, _ = run()
    assert time.monotonic() - begun < 5
    assert status == 0
    assert "300 queues of unknown programs" in out
    assert out.count("/dev/shm, key") == 300
