"""The command line, used as a person uses it: real queues, processes, signals and terminals."""

import contextlib
import ctypes
import errno
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import time
from dataclasses import replace
from importlib import resources

import pytest
import sysv_ipc
from children import FD_POSTPROC, python

import fd_postproc as fp
from fd_postproc import _core, data, queues
from fd_postproc.cli import COMMANDS, main, workload
from fd_postproc.errors import queue_error
from fd_postproc.recording import Recording, RecordingWriter

SHIPPED = resources.files(data)
PROGRAM = [FD_POSTPROC]


@pytest.fixture
def own_namespace():
    """Default limits and nobody else's queues; none may be left behind.  True if that was permitted."""
    libc, new_ipc = ctypes.CDLL(None), 0x08000000
    with open("/proc/thread-self/ns/ipc") as outside:
        if libc.unshare(new_ipc) != 0:
            yield False
            return
        try:
            yield True
            assert queues.list_queues() == []
        finally:
            libc.setns(outside.fileno(), new_ipc)


@pytest.fixture
def queue(queue_key):
    """One private queue."""
    return sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)


@pytest.fixture
def run(capsys):
    """A function that runs a command and gives (status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@contextlib.contextmanager
def started(*arguments, **options):
    process = subprocess.Popen(
        PROGRAM + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background left SIGINT ignored.
        **{"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
    return found


def payloads(path):
    with Recording(path) as recording:
        return [message.payload for message in recording]


def take_all(queue):
    found = []
    with contextlib.suppress(sysv_ipc.BusyError):
        while True:
            found.append(queue.receive(block=False))
    return found


def flat(text):
    """Text as it was before it was wrapped."""
    return " ".join(text.split())


def key_of(queue):
    return f"key:{queue.key:#x}"


# Help and usage


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"fd-postproc {command}" in out.split("examples:")[1]
    assert command in run("--help")[1]


def test_help_imports_neither_numpy_nor_rich():
    code = (
        "import contextlib, sys\nfrom fd_postproc.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['demo', '--help'])\n"
        "sys.exit(bool({'numpy', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run(python(code), stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "COMMAND"),
        (["nothing"], "nothing"),
        (["demo", "--load", "3,2"], "three numbers"),
        (["demo", "--load", "3,0,1"], "three numbers"),
        (["demo", "--channel", "plain"], "--load"),
        (["demo", "--steps", "5"], "--load"),
        (["demo", "--load", "1,1,1", "--pace", "1"], "--pace"),
        (["demo", "--load", "1,1,2", "--channel", "plain"], "COLUMNS must be 1, not 2"),
        (["demo", "--load", "1,2,2", "--channel", "topk"], "ACCEPTED must be 1, not 2"),
        (["demo", "--rows", "0"], "from 1"),
        (["inspect", "key:zz"], "'zz'"),
        (["inspect", "key:0"], "other than 0"),
        (["inspect", "msqid:-1"], "msqid -1"),
        (["inspect", "99999999999"], "32 bits"),
        (["inspect", "1", "--index", "x"], "from 0"),
        (["inspect", "1", "--layout", "1,2"], "four numbers"),
        (["inspect", "1", "--layout", "0,20,6,256"], "max_batch = 0"),
        (["record", "name", "file"], "queue id"),
        (["record", "1", "file", "--seconds", "0"], "above 0"),
        (["record", "1", "file", "--seconds", "soon"], "above 0"),
        (["replay", "file", "1", "--speed", "2", "--full-speed"], "not allowed"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_value(run, arguments, why):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert why in err.splitlines()[-1]


# demo


def test_demo_carries_everything_under_the_default_limits(run, own_namespace):
    status, out, err = run("demo", "--repeat", "3")
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "arrived equal to what FastDeploy sent" in flat(out)
    assert re.search(r"spec_topk 6 .*-9 preempted|-9 preempted", out)
    assert "messages  " in out
    assert " a second" in out
    if own_namespace:
        assert "22 of 22 recorded messages" in out
        assert "6 of them went as compact frames" in flat(out)
        assert len(re.findall("one message ", out)) == 16 + 1
        assert "compact, 13 pieces" in out
        assert "kernel.msgmax=266252" in out


def test_demo_carries_everything_under_raised_limits(raised_limits, run):
    status, out, _ = run("demo", "--repeat", "2")
    assert status == 0
    assert "22 of 22 recorded messages" in out
    assert "compact" not in out
    assert queues.list_queues() == []


def test_demo_shows_the_recorded_numbers(run, goldens):
    _, out, _ = run("demo", "--repeat", "1", "--rows", "3", "--top", "1")
    step = fp.decode(goldens["spectopk_legacy_b3_c21_s1024"].payload, "spec_topk")
    view = step.logprobs(0)
    ids, scores, ranks = view.tolists()
    line = next(line for line in out.splitlines() if line.strip().startswith("spec_topk 3"))
    assert line.split() == [
        *("spec_topk", "3", "0", str(len(view)), str(ids[0][0]), str(ranks[0]), f"{scores[0][0]:.3f}"),
        f"{ids[0][1]}:{scores[0][1]:.2f}",
    ]


def test_demo_notices_a_step_that_arrives_different(run, monkeypatch):
    items = list(workload.recorded_items())

    def tampered():
        for item in items:
            if item.name == "plain 1":
                item = replace(item, step=fp.Step.from_arrays("plain", item.step.counts, [1, 2, 3]))
            yield item

    monkeypatch.setattr(workload, "recorded_items", tampered)  # the sender is another process
    status, out, err = run("demo", "--repeat", "1")
    assert status == 1
    assert out.count("DIFFERENT") == 1
    assert "2 messages arrived different" in err
    assert "plain 1" in err


@pytest.mark.parametrize(
    ("load", "channel"), [("256,1,1", "plain"), ("100,2,1", "spec"), ("3,2,21", "spec_topk")]
)
def test_load_arrives_equal(run, own_namespace, load, channel):
    status, out, err = run("demo", "--load", load, "--channel", channel, "--steps", "50")
    assert (status, err) == (0, "")
    assert "50 steps came from process" in out
    assert "every one arrived equal" in out
    assert "\x1b" not in out


def test_load_that_does_not_fit_one_message_goes_in_pieces(run, own_namespace):
    if not own_namespace:
        pytest.skip(
            "the numbers are those of the default limits, which need an IPC namespace of the test's own"
        )
    status, out, err = run("demo", "--load", "256,2,21", "--steps", "20")
    assert (status, err) == (0, "")
    assert "20 steps came from process" in out
    assert "Each went as compact, 11 pieces" in flat(out)
    assert "it has 266,236 bytes, and one message may hold 8,192 bytes" in flat(out)
    assert "pieces" not in run("demo", "--load", "5,2,21", "--steps", "2")[1]
    assert "Each went as compact:" in flat(run("demo", "--load", "1,1,1", "--channel", "topk")[1])


@pytest.mark.parametrize("load", ["513,1,1", "1,7,1", "1,1,22"])
def test_load_beyond_the_layout_is_refused(run, load):
    status, out, err = run("demo", "--load", load)
    assert (status, out) == (1, "")
    assert "at most" in err


def test_load_under_raised_limits(raised_limits, run):
    status, out, _ = run("demo", "--load", "256,2,21", "--steps", "20")
    assert status == 0
    assert "20 steps came" in out


LONG = ("demo", "--load", "3,2,21", "--steps", "100000000")


def sender_of(demo):
    """The pid of the sender, once it has sent something."""

    def busy():
        with open(f"/proc/{demo.pid}/task/{demo.pid}/children") as file:
            children = file.read().split()
        sent = [queue for queue in queues.list_queues() if str(queue.last_sender) in children]
        return sent[0] if sent else None

    return until(busy)


def gone(queue):
    return all(other.msqid != queue.msqid for other in queues.list_queues())


def test_demo_ends_when_its_sender_dies(own_namespace):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        os.kill(queue.last_sender, signal.SIGKILL)
        _, err = demo.communicate(timeout=20)
        assert demo.returncode == 1
        assert "the sender process was ended by signal 9" in err
        assert len(err.splitlines()) == 1
        assert gone(queue)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_demo_removes_its_queue_when_it_is_stopped(own_namespace, number, status):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        assert queue.mode == 0o600
        demo.send_signal(number)
        _, err = demo.communicate(timeout=20)
        assert demo.returncode == status
        assert "Traceback" not in err
        assert gone(queue)


def test_the_sender_removes_the_queue_when_the_demo_is_killed(own_namespace):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        demo.kill()
        until(lambda: gone(queue))
        until(lambda: not os.path.exists(f"/proc/{queue.last_sender}/fd/0"))


def in_terminal(*arguments, env=None, size=(40, 100)):
    """What a command writes to a terminal."""
    import fcntl
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **(env or {})}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        PROGRAM + list(arguments), stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    seen = b""
    end = time.monotonic() + 30
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while select.select([leader], [], [], max(end - time.monotonic(), 0))[0]:
            if not (part := os.read(leader, 1 << 16)):
                break
            seen += part
    os.close(leader)
    assert process.wait(timeout=20) == 0
    return seen.decode()


def test_a_terminal_gets_a_live_table_and_then_the_final_ones():
    seen = in_terminal("demo", "--pace", "0.001", "--repeat", "1")
    assert seen.count("\x1b[2K") > 16  # lines drawn anew
    assert "arrived equal" in seen[seen.rindex("\x1b[2K") :]


def test_a_terminal_gets_a_progress_bar():
    seen = in_terminal("demo", "--load", "3,2,21", "--steps", "3000")
    assert "3000/3000" in seen
    assert "every one arrived equal" in seen


def test_a_narrow_terminal_without_utf8_loses_no_number():
    seen = in_terminal(
        "demo",
        "--pace",
        "0.001",
        "--repeat",
        "1",
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "NO_COLOR": "1"},
        size=(24, 50),
    )
    assert seen.isascii()
    final = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen[seen.rindex("\x1b[2K") :])
    assert "530" in final
    assert "arrived equal" in flat(final)
    assert "Traceback" not in seen


def test_a_closed_pipe_is_quiet():
    with started("demo", "--repeat", "1") as demo:
        demo.stdout.close()
        demo.stdout = None
        _, err = demo.communicate(timeout=20)
    assert err == ""
    assert demo.returncode == 1


# inspect


def test_inspect_leaves_the_message_and_shows_the_queue(run, queue, goldens):
    for name in "plain_b3_stop_s7", "plain_b1_s1001":
        queue.send(goldens[name].payload)
    status, out, err = run("inspect", key_of(queue), "--channel", "plain")
    assert (status, err) == (0, "")
    assert queue.current_messages == 2
    for part in (
        f"Queue {queue.id}",
        "2 messages, 4,112 bytes",
        "0600",
        f"process {os.getpid()}",
        "Message 0",
    ):
        assert part in out
    assert "-3 recovery stop" in out
    assert "-9 preempted" in out
    assert "the worker has finished" in out
    assert "137415" in run("inspect", key_of(queue), "--channel", "plain", "--index", "1")[1]
    status, _, err = run("inspect", f"msqid:{queue.id}", "--index", "2")
    assert status == 1
    assert "no message 2" in err


def test_inspect_an_empty_queue(run, queue):
    status, out, _ = run("inspect", f"msqid:{queue.id}")
    assert status == 0
    assert "The queue is empty." in out
    assert "nobody yet" in out


@pytest.mark.parametrize(
    ("name", "channel", "why"),
    [
        ("plain_b3_s1003", "plain", "length of a full message"),
        ("spec_b3_s1003", "spec", "length of a full message"),
        ("spectopk_legacy_b3_c21_s1024", "spec_topk", "ends with its last live slot"),
        ("spectopk_packed_b3_c6_s1009", "spec_topk", "ends with its last live slot"),
    ],
)
def test_inspect_guesses_the_channel_and_says_so(run, queue, goldens, name, channel, why):
    payload = goldens[name].payload
    if channel == "spec_topk":
        payload = workload.cut(fp.decode(payload, channel))
    queue.send(payload)
    status, out, _ = run("inspect", key_of(queue))
    assert status == 0
    assert f"The channel is a guess: {channel}, because it" in out
    assert why in out


def test_inspect_guesses_every_golden_message_of_a_file_right(run, golden, tmp_path):
    path = tmp_path / "payload.bin"
    path.write_bytes(golden.payload)
    status, out, _ = run("inspect", path, "--rows", "1")
    assert status == 0
    assert f"The channel is a guess: {golden.channel}," in out


def test_inspect_reports_a_malformed_message(run, queue, goldens):
    payload = bytearray(goldens["spec_b3_s1003"].payload)
    payload[8:12] = (77).to_bytes(4, "little")
    queue.send(bytes(payload))
    status, out, err = run("inspect", key_of(queue), "--channel", "spec")
    assert status == 1
    assert "request 0 claims 77 tokens, at most 6" in err
    assert "0000  01000000 03000000 4d000000" in out
    assert queue.current_messages == 1
    status, out, _ = run("inspect", key_of(queue))
    assert status == 0
    assert "length of a full spec message, too, but: malformed spec message: request 0 claims 77" in flat(out)


def test_inspect_of_noise_tells_why_it_is_of_no_channel(run, queue):
    queue.send(b"\xa5" * 500)
    status, out, err = run("inspect", key_of(queue))
    assert status == 1
    assert "500 bytes, mtype 1" in out
    assert err.count("malformed") == 4


def test_inspect_says_what_else_a_message_may_be(run, queue, goldens):
    queue.send(goldens["plain_b3_s1003"].payload)
    status, out, err = run("inspect", key_of(queue), "--channel", "topk")
    assert status == 1
    assert "It adds up as plain." in out
    assert "malformed topk message" in err


def test_inspect_of_a_message_longer_than_msgmax_now(raised_limits, run, queue, goldens):
    queue.send(goldens["topk_packed_b3_c6_s1009"].payload)
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    status, _, err = run("inspect", key_of(queue), "--channel", "topk")
    assert status == 1
    assert "kernel.msgmax = 8192" in err
    assert "fd-postproc record" in err
    assert "Traceback" not in err


def test_inspect_where_the_kernel_cannot_copy(run, queue, monkeypatch):
    def peek(msqid, index):
        raise queue_error(errno.ENOSYS, f"looking at message {index} of queue {msqid}")

    monkeypatch.setattr(_core, "peek", peek)  # kernels without CONFIG_CHECKPOINT_RESTORE are rare
    status, out, err = run("inspect", key_of(queue))
    assert status == 1
    assert f"Queue {queue.id}" in out
    assert "cannot look at a message without taking it" in err
    assert "fd-postproc record" in err


def test_inspect_a_recording(run):
    status, out, _ = run("inspect", SHIPPED / "spec_topk.fdrec", "--index", "8", "--rows", "2", "--top", "1")
    assert status == 0
    for part in "messages  9", "message flag  3 target", "21 (told by the header)", "12424", "254 more":
        assert part in out
    assert "guess" not in out
    status, _, err = run("inspect", SHIPPED / "plain.fdrec", "--index", "4")
    assert status == 1
    assert "no message 4" in err


def test_inspect_tells_that_a_recording_is_cut(run, tmp_path):
    path = tmp_path / "cut.fdrec"
    path.write_bytes((SHIPPED / "plain.fdrec").read_bytes()[:-1])
    status, out, _ = run("inspect", path)
    assert status == 0
    assert "messages  3" in out
    assert "message 3 (at byte" in out


def test_inspect_with_another_layout(run, tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(struct.pack("<2i", 1, 50) + bytes(4 * 50))
    assert run("inspect", path, "--channel", "plain", "--layout", "xpu")[0] == 0
    status, _, err = run("inspect", path, "--channel", "plain", "--layout", "40,20,6,64")
    assert status == 1
    assert "more than the 168 of this channel and layout" in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["inspect", "no/such"], "no such file; a queue is written as"),
        (["inspect", "msqid:2147483647"], "looking at queue 2147483647"),
        (["inspect", "key:0x7ffffff1"], "start the other side first"),
        (["inspect", "777123"], "/dev/shm"),
        (["inspect", "777123", "--path", "/no/such"], "/no/such"),
        (["inspect", "/etc/passwd/x"], "'/etc/passwd/x'"),
        (["record", "key:0x7ffffff1", "x"], "start the other side first"),
        (["replay", "no/such", "1"], "no/such: No such file or directory"),
        (["replay", "/etc/passwd", "1"], "is not a recording"),
        (["inspect", "/etc/passwd", "--index", "1"], "not a recording but one payload"),
        (["inspect", "/"], "directory"),
    ],
)
def test_foreseeable_failures_are_one_line(run, arguments, why):
    status, _, err = run(*arguments)
    assert status == 1
    assert why in err
    assert len(err.splitlines()) == 1
    assert err.startswith(f"fd-postproc {arguments[0]}: ")


def test_a_queue_id_is_looked_for_under_both_paths(run, own_namespace, monkeypatch, tmp_path, goldens):
    monkeypatch.chdir(tmp_path)
    number = 400_000 + os.getpid() % 100_000
    made = []
    try:
        for channel in "spec", "plain":
            key = queues.locate(channel, number)
            made.append(sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 14))
            made[-1].send(goldens[f"{channel}_b3_s1003"].payload)
            status, out, err = run("inspect", number)
            assert status == 0
            assert f"The channel is a guess: {channel}" in out
        assert "two queues" in err
        assert "--channel spec" in err
        assert f"Queue {made[0].id}" in run("inspect", number, "--channel", "spec")[1]
    finally:
        for queue in made:
            queue.remove()


def test_a_private_queue_can_be_looked_at_but_not_recorded(run, tmp_path):
    libc = ctypes.CDLL(None)
    msqid = libc.msgget(0, 0o600)
    try:
        status, out, _ = run("inspect", f"msqid:{msqid}")
        assert status == 0
        assert "0, private" in out
        status, _, err = run("record", f"msqid:{msqid}", tmp_path / "a")
        assert status == 1
        assert "private (key 0)" in err
    finally:
        queues.remove_queue(msqid)


def test_a_queue_of_another_user_is_not_recorded(run, queue, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who may not")
    run("record", "--help")  # imports what the other user may not be able to read
    os.seteuid(65534)
    try:
        status, _, err = run("record", key_of(queue), tmp_path / "a")
    finally:
        os.seteuid(0)
    assert status == 1
    assert "Permission denied; run both sides as the same user" in err
    assert not (tmp_path / "a").exists()


# record and replay


def test_record_and_replay_keep_every_byte(run, queue, tmp_path):
    sent = [(b"", 1), (b"x" * 5000, 7), (bytes(range(256)), (1 << 31) - 1)]
    for payload, mtype in sent:
        queue.send(payload, type=mtype)
    path = tmp_path / "a.fdrec"
    status, out, err = run("record", key_of(queue), path, "--count", "3", "--channel", "plain")
    assert (status, out) == (0, "")
    assert "it holds user text" in err
    assert "3 messages, 5,256 bytes" in err
    assert path.stat().st_mode & 0o777 == 0o600
    assert queue.current_messages == 0
    status, _, err = run("replay", path, key_of(queue))
    assert status == 0
    assert "3 of 3 messages" in err
    assert take_all(queue) == sent


def test_record_takes_no_more_than_asked(run, queue, tmp_path):
    for i in range(3):
        queue.send(bytes([i]))
    assert run("record", key_of(queue), tmp_path / "a", "--count", "2")[0] == 0
    assert take_all(queue) == [(b"\2", 1)]
    assert payloads(tmp_path / "a") == [b"\0", b"\1"]


def test_record_does_not_replace_a_file(run, queue, tmp_path):
    path = tmp_path / "a"
    path.write_text("mine")
    queue.send(b"x")
    status, _, err = run("record", key_of(queue), path, "--seconds", "0.1")
    assert status == 1
    assert "--force" in err
    assert path.read_text() == "mine"
    assert queue.current_messages == 1
    assert run("record", key_of(queue), path, "--seconds", "0.1", "--force")[0] == 0
    assert payloads(path) == [b"x"]


def test_record_stops_on_ctrl_c_and_loses_nothing(queue, tmp_path):
    path = tmp_path / "a"
    sent = [struct.pack("<i", i) * 100 for i in range(3000)]
    with started("record", key_of(queue), path) as recorder:
        for payload in sent[:2000]:
            queue.send(payload)
        recorder.send_signal(signal.SIGINT)
        for payload in sent[2000:]:
            with contextlib.suppress(sysv_ipc.BusyError):
                queue.send(payload, block=False)
        _, err = recorder.communicate(timeout=20)
        assert recorder.returncode == 0
        assert "Traceback" not in err
    found = payloads(path)
    rest = [payload for payload, _ in take_all(queue)]
    assert len(found) >= 1950
    assert found + rest == sent[: len(found) + len(rest)]


def test_a_killed_recorder_leaves_a_readable_file(queue, tmp_path):
    path = tmp_path / "a"
    with started("record", key_of(queue), path) as recorder:
        for i in range(500):
            queue.send(struct.pack("<i", i))
        until(lambda: path.exists() and path.stat().st_size > 2000)
        recorder.kill()
        recorder.wait()
    left = [struct.unpack("<i", payload)[0] for payload, _ in take_all(queue)]
    found = [struct.unpack("<i", payload)[0] for payload in payloads(path)]
    assert found == list(range(len(found)))
    assert len(found) + len(left) >= 499  # the one in hand may be lost to SIGKILL


def test_record_ends_when_the_queue_is_removed(queue, tmp_path):
    with started("record", key_of(queue), tmp_path / "a") as recorder:
        queue.send(b"x")
        until(lambda: queue.current_messages == 0)
        time.sleep(0.05)
        queue.remove()
        _, err = recorder.communicate(timeout=20)
    assert recorder.returncode == 1
    assert "was removed while recording" in err
    assert payloads(tmp_path / "a") == [b"x"]


def test_a_full_disk_is_reported_with_the_message_in_hand(queue, tmp_path):
    queue.send(b"first")
    queue.send(os.urandom(4000))
    queue.send(b"third")
    limit = (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    with started(
        "record",
        key_of(queue),
        tmp_path / "a",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    ) as recorder:
        _, err = recorder.communicate(timeout=20)
    assert recorder.returncode == 1
    assert "the message in hand (4000 bytes, type 1) was taken" in err
    assert payloads(tmp_path / "a") == [b"first"]
    assert take_all(queue) == [(b"third", 1)]


def test_replay_refuses_what_cannot_fit_before_anything_is_sent(run, queue):
    status, out, err = run("replay", SHIPPED / "topk.fdrec", key_of(queue))
    if queues.kernel_limits().msgmax >= 88072:
        pytest.skip("this machine's limits carry the message")
    assert (status, out) == (1, "")
    assert "nothing was sent: 4 of 4 messages" in err
    assert "message 3: 88,072 bytes" in err
    assert "kernel.msgmax=88072" in err
    assert "--cut" in err
    assert queue.current_messages == 0
    status, _, err = run("replay", SHIPPED / "topk.fdrec", key_of(queue), "--cut")
    assert status == 1
    assert "message 0: 86,028 bytes" in err


def test_replay_cuts_messages_that_stay_the_same_steps(run, queue, tmp_path, goldens):
    path = tmp_path / "a"
    names = ["spectopk_legacy_b3_c21_s1024", "spectopk_packed_b1_c6_s1007"]
    with RecordingWriter(path, "spec_topk") as recording:
        for name in names:
            recording.write(goldens[name].payload)
    assert run("replay", path, key_of(queue), "--cut", "--full-speed")[0] == 0
    for name, (payload, _) in zip(names, take_all(queue), strict=True):
        step, original = fp.decode(payload, "spec_topk"), fp.decode(goldens[name].payload, "spec_topk")
        assert len(payload) < 8192
        assert (step, step.dialect) == (original, original.dialect)


def test_replay_cut_needs_to_know_the_channel(run, queue, tmp_path):
    path = tmp_path / "a"
    with RecordingWriter(path) as recording:
        recording.write(bytes(2056))
    status, _, err = run("replay", path, key_of(queue), "--cut")
    assert status == 1
    assert "--channel" in err


def test_replay_names_a_message_that_cannot_be_cut(run, queue, tmp_path):
    path = tmp_path / "a"
    with RecordingWriter(path, "spec_topk") as recording:
        recording.write(b"\xff" * 20000)
    status, _, err = run("replay", path, key_of(queue), "--cut")
    assert status == 1
    assert "message 0 cannot be cut: malformed spec_topk message" in err


def test_replay_names_a_type_that_cannot_be_sent(run, queue, tmp_path):
    path = tmp_path / "a"
    with RecordingWriter(path) as recording:
        recording.write(b"x", (3 << 32) + 1)
    status, _, err = run("replay", path, key_of(queue))
    assert status == 1
    assert "type 0x300000001" in err
    assert queue.current_messages == 0


def test_replay_gives_up_on_a_queue_that_stays_full(run, queue, tmp_path):
    path = tmp_path / "a"
    with RecordingWriter(path) as recording:
        for _ in range(5):
            recording.write(bytes(min(queues.kernel_limits().msgmax, queue.max_size // 2)))
    began = time.monotonic()
    status, _, err = run("replay", path, key_of(queue), "--full-speed", "--timeout", "1.2")
    assert status == 1
    assert 1.2 <= time.monotonic() - began < 10
    assert "is full (2 messages); waiting for its reader" in err
    assert "2 of 5 messages were sent" in err
    assert "stayed full for 1.2 s" in err


def test_replay_waits_for_the_reader(queue, tmp_path):
    path = tmp_path / "a"
    sent = [bytes([i]) * 4000 for i in range(30)]
    with RecordingWriter(path) as recording:
        for payload in sent:
            recording.write(payload)
    with started("replay", path, key_of(queue), "--full-speed") as replay:
        assert [queue.receive()[0] for _ in sent] == sent
        assert replay.wait(timeout=20) == 0


@pytest.mark.parametrize(("options", "least", "most"), [([], 0.4, 5), (["--speed", "4"], 0.1, 0.39)])
def test_replay_keeps_the_recorded_pace(run, queue, tmp_path, options, least, most):
    path = tmp_path / "a"
    with RecordingWriter(path) as recording:
        for i in range(5):
            recording.write(b"x", 1, 10**18 + i * 100_000_000)
    began = time.monotonic()
    assert run("replay", path, key_of(queue), *options)[0] == 0
    assert least <= time.monotonic() - began < most


def test_replay_tells_that_the_recording_is_cut(run, queue, tmp_path):
    path = tmp_path / "a"
    path.write_bytes((SHIPPED / "plain.fdrec").read_bytes()[:-1])
    status, _, err = run("replay", path, key_of(queue), "--full-speed")
    assert status == 0
    assert "3 of 3 messages" in err
    assert "cut short: message 3" in err


def test_replay_makes_the_queue_only_if_asked(run, queue_key):
    assert run("replay", SHIPPED / "plain.fdrec", f"key:{queue_key:#x}")[0] == 1
    status, _, _ = run("replay", SHIPPED / "plain.fdrec", f"key:{queue_key:#x}", "--create", "--full-speed")
    assert status == 0
    with fp.Receiver("plain", key=queue_key) as receiver:
        assert queues.inspect_queue(receiver.msqid).mode == 0o600
        assert [receiver.receive(0).batch for _ in range(4)] == [1, 3, 3, 256]


def test_full_size_messages_travel_to_a_file_and_back(raised_limits, run, tmp_path, queue_key):
    name, path = f"key:{queue_key:#x}", tmp_path / "a"
    assert run("replay", SHIPPED / "spec_topk.fdrec", name, "--create", "--full-speed")[0] == 0
    assert run("record", name, path, "--count", "9", "--channel", "spec_topk")[0] == 0
    assert payloads(path) == payloads(SHIPPED / "spec_topk.fdrec")
