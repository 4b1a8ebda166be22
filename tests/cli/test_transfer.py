"""``fd-postproc record`` and ``replay``."""

import contextlib
import os
import resource
import signal
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli.queue_io import QueueName, RawQueue, Target, parse_queue_name
from fd_postproc.errors import QueueRemoved
from fd_postproc.recording import RecordingWriter
from tests.lib.children import FD_POSTPROC
from tests.lib.commands import SHIPPED, key_of, payloads, started, take_all
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE, until


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


def test_frames_are_not_replayed_under_another_channel(run, queue, tmp_path):
    path = tmp_path / "a.fdrec"
    frame = fp.encode(fp.Step.from_arrays("spec", [1], [5]), "compact")
    with RecordingWriter(path, None) as recording:
        recording.write(frame, 2)
    status, _, err = run("replay", path, key_of(queue), "--channel", "topk")
    assert (status, "spec" in err, queue.current_messages) == (1, True, 0)
    assert run("replay", path, key_of(queue), "--channel", "spec")[0] == 0
    assert take_all(queue) == [(frame, 2)]


def test_a_folder_is_no_recording(run, queue, tmp_path):
    for force in ([], ["--force"]):
        status, _, err = run("record", key_of(queue), tmp_path, *force)
        assert (status, "is a folder" in err) == (1, True)


def test_nothing_is_taken_for_a_closed_standard_output(queue, tmp_path):
    queue.send(b"x")
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", FD_POSTPROC, "record", key_of(queue), "-", "--count", "1"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "standard output is closed" in done.stderr) == (1, True)
    assert queue.current_messages == 1


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


@each("text, key", [("0x7fffffff", (1 << 31) - 1), ("0x80000000", -(1 << 31)), ("0xffffffff", -1)])
def test_a_key_as_ipcs_prints_it(text, key):
    assert parse_queue_name(f"key:{text}") == QueueName("key", key)


def test_a_queue_that_was_made_anew_meanwhile_is_not_the_one_that_was_named(queue):
    with pytest.raises(QueueRemoved):
        RawQueue(Target(queue.id ^ 1, queue.key))


@pytest.mark.realtime
@each("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_record_stops_on_a_signal_and_loses_nothing(number, queue, tmp_path):
    path = tmp_path / number.name
    queue.max_size = min(queue.max_size, 16384)  # 40 messages at once
    sent = []
    with started("record", key_of(queue), path) as recorder:
        for i in range(3000):
            if i == 2000:
                recorder.send_signal(number)
            payload = struct.pack("<i", i) * 100
            with contextlib.suppress(sysv_ipc.BusyError):  # not sent: the queue is full, and room may come
                queue.send(payload, block=i < 2000)
                sent.append(payload)
        _, err = recorder.communicate(timeout=PATIENCE)
        assert recorder.returncode == 0
        assert "Traceback" not in err
    found = payloads(path)
    rest = [payload for payload, _ in take_all(queue)]
    assert len(found) >= 1950
    assert found + rest == sent


@pytest.mark.realtime
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


def test_record_ends_when_the_queue_is_removed(run, queue, tmp_path):
    def remove():
        until(lambda: queue.current_messages == 0)
        queue.remove()

    queue.send(b"x")
    with ThreadPoolExecutor() as beside:
        beside.submit(remove)
        status, _, err = run("record", key_of(queue), tmp_path / "a")
    assert status == 1
    assert "was removed while recording" in err
    assert payloads(tmp_path / "a") == [b"x"]


@each("comes", [True, False])
def test_a_file_that_is_removed_while_it_is_written_is_reported(run, queue, tmp_path, comes):
    """What comes later goes back into the queue."""
    path = tmp_path / "a"

    def remove():
        until(lambda: path.exists() and path.stat().st_size > 68)  # the header and a message
        path.unlink()
        if comes:
            queue.send(b"second")
        else:
            queue.remove()

    queue.send(b"first")
    with ThreadPoolExecutor() as beside:
        beside.submit(remove)
        status, _, err = run("record", key_of(queue), path)
    assert status == 1
    assert ("went with the file" if comes else "what it held is lost") in err
    assert "are in the file" not in err
    if comes:
        assert take_all(queue) == [(b"second", 1)]


def test_a_full_disk_is_reported_with_the_message_in_hand(run, queue, tmp_path):
    queue.send(b"first")
    queue.send(os.urandom(4000))
    queue.send(b"third")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        status, _, err = run("record", key_of(queue), tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    assert "the message in hand (4,000 bytes, type 1) was put back into the queue, behind what" in err
    assert payloads(tmp_path / "a") == [b"first"]
    (third, _), (second, _) = take_all(queue)
    assert (third, len(second)) == (b"third", 4000)


def test_replay_refuses_what_cannot_fit_before_anything_is_sent(run, queue):
    status, out, err = run("replay", SHIPPED / "topk.fdrec", key_of(queue))
    if queues.kernel_limits().msgmax >= 88072:
        pytest.skip("this machine's limits carry the message")
    assert (status, out) == (1, "")
    assert "nothing was sent: 4 of 4 messages" in err
    assert "message 3: 88,072 bytes" in err
    assert "kernel.msgmax=88072" in err
    assert queue.current_messages == 0


def test_replay_refuses_what_the_queue_never_holds(run, queue, tmp_path):
    """It is shorter than kernel.msgmax: the kernel would have the sender wait."""
    queue.max_size = 4096
    with RecordingWriter(tmp_path / "a") as recording:
        for size, mtype in (100, 1), (4097, 1), (4096, 1 << 31):
            recording.write(b"x" * size, mtype)
    status, _, err = run("replay", tmp_path / "a", key_of(queue), "--timeout", "0.1")
    assert status == 1
    assert "nothing was sent: 2 of 3 messages" in err
    assert "message 2: type 0x80000000 does not fit 31 bits" in err
    assert queue.current_messages == 0


@pytest.mark.realtime
def test_replay_waits_for_the_reader_and_gives_up_on_a_queue_that_stays_full(run, queue, tmp_path):
    queue.max_size = min(queue.max_size, 16384)
    path, size = tmp_path / "a", min(queues.kernel_limits().msgmax, queue.max_size // 2)
    sent = [bytes([i]) * size for i in range(5)]
    with RecordingWriter(path) as recording:
        for payload in sent:
            recording.write(payload)
    with ThreadPoolExecutor() as beside:
        taken = beside.submit(lambda: [queue.receive()[0] for _ in sent])
        assert run("replay", path, key_of(queue), "--full-speed")[0] == 0
        assert taken.result() == sent
    began = time.monotonic()
    status, _, err = run("replay", path, key_of(queue), "--full-speed", "--timeout", "1.2")
    assert status == 1
    assert time.monotonic() - began >= 1.2
    assert err.count("is full; waiting for its reader") == 1
    assert "2 of 5 messages were sent" in err


@pytest.mark.realtime
@each(("options", "seconds"), [([], 0.4), (["--speed", "1000"], 400)])
def test_replay_keeps_the_recorded_pace(run, queue, tmp_path, options, seconds):
    path = tmp_path / "a"
    with RecordingWriter(path, force=True) as recording:
        for i in range(5):
            recording.write(b"x", 1, 10**18 + i * round(seconds / 4 * 10**9))
    began = time.monotonic()
    assert run("replay", path, key_of(queue), *options)[0] == 0
    assert 0.4 <= time.monotonic() - began < PATIENCE


def test_nothing_of_a_damaged_recording_is_sent(run, queue, tmp_path):
    path = tmp_path / "a"
    content = bytearray((SHIPPED / "plain.fdrec").read_bytes())
    content[-1] ^= 1  # of the last message
    path.write_bytes(content)
    status, _, err = run("replay", path, key_of(queue), "--full-speed")
    assert (status, "message 3" in err, queue.current_messages) == (1, True, 0), err


def test_replay_tells_that_the_recording_is_cut(run, queue, tmp_path):
    path = tmp_path / "a"
    path.write_bytes((SHIPPED / "plain.fdrec").read_bytes()[:-1])
    status, _, err = run("replay", path, key_of(queue), "--full-speed")
    assert status == 0
    assert "3 of 3 messages" in err
    assert "cut short: message 3" in err


def test_full_size_messages_travel_to_a_file_and_back(raised_limits, run, tmp_path, queue_key):
    name, path = f"key:{queue_key:#x}", tmp_path / "a"
    assert run("replay", SHIPPED / "spec_topk.fdrec", name)[0] == 1
    fp.Receiver("spec_topk", key=queue_key).close()
    assert run("replay", SHIPPED / "spec_topk.fdrec", name, "--full-speed")[0] == 0
    assert run("record", name, path, "--count", "9", "--channel", "spec_topk")[0] == 0
    assert payloads(path) == payloads(SHIPPED / "spec_topk.fdrec")
