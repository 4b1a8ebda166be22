"""Pipes, FIFOs and standard streams; what is done with a message that cannot be written."""

import contextlib
import errno
import os
import subprocess
import threading

import pytest

import fd_postproc as fp
from fd_postproc.cli import main
from fd_postproc.recording import Recording, RecordingWriter
from tests.lib.children import FD_POSTPROC
from tests.lib.commands import key_of, payloads, take_all
from tests.lib.waiting import PATIENCE

STEP = fp.Step.from_arrays("plain", [1, -1], [7])


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.fdrec"
    with RecordingWriter(path, "plain") as writer:
        for token in range(3):
            writer.write(fp.encode(fp.Step.from_arrays("plain", [1], [token])), time_ns=token)
    return path


def command(*arguments, **options):
    return subprocess.run(
        [FD_POSTPROC, *map(str, arguments)], capture_output=True, timeout=PATIENCE, check=False, **options
    )


def test_inspect_reads_a_pipe_a_fifo_and_a_substituted_process(recording, tmp_path):
    wanted = command("inspect", recording, "--index", "2").stdout
    with recording.open("rb") as file:
        assert command("inspect", "-", "--index", "2", stdin=file).returncode == 0
    piped = command("inspect", "-", "--index", "2", input=recording.read_bytes())
    assert piped.stdout.partition(b"Message 2")[2] == wanted.partition(b"Message 2")[2] != b""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(recording.read_bytes()))
    writer.start()
    assert b"Message 1" in command("inspect", fifo, "--index", "1").stdout
    writer.join()
    shell = f"{FD_POSTPROC} inspect <(cat {recording}) && printf abc | {FD_POSTPROC} inspect /dev/stdin"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "Message 0" in done.stdout
    assert "3 bytes, mtype 1" in done.stdout
    assert "Traceback" not in done.stderr


def test_record_and_replay_by_standard_streams(queue, queue_keys):
    with fp.Sender("plain", key=queue.key) as sender:
        for _ in range(3):
            sender.send(STEP)
    other = queue_keys()
    shell = (
        f"{FD_POSTPROC} record {key_of(queue)} - --channel plain --count 3 | "
        f"{FD_POSTPROC} replay - key:{other:#x} --full-speed"
    )
    with fp.Receiver("plain", key=other) as receiver:
        done = subprocess.run(
            ["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "standard output" in done.stderr
        assert "3 of 3 messages were sent" in done.stderr
        assert [receiver.receive(0) for _ in range(4)] == [STEP, STEP, STEP, None]


def full(self, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that has room for a recording's header only."""
    real = RecordingWriter.write

    def write(self, payload, *arguments):
        if not self.path.startswith("/dev/shm/"):
            monkeypatch.setattr(self, "_append", full.__get__(self))
        return real(self, payload, *arguments)

    monkeypatch.setattr(RecordingWriter, "write", write)


def test_a_full_disk_loses_no_message(queue, tmp_path, full_disk, capsys):
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send(STEP)
        sender.send(STEP)
    assert main(["record", key_of(queue), str(tmp_path / "a.fdrec")]) == 1
    err = capsys.readouterr().err
    assert (
        "No space left on device; the message in hand (16 bytes, type 1) was put back into the queue" in err
    )
    assert "behind what came later" in err
    assert [payload for payload, _ in take_all(queue)] == [fp.encode(STEP)] * 2


def test_a_full_disk_and_a_full_queue_lose_no_message(queue, tmp_path, full_disk, capsys, monkeypatch):
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send(STEP)
    monkeypatch.setattr("fd_postproc.cli.queue_io.RawQueue.put", lambda *arguments: False)
    path = f"/dev/shm/fd-postproc-rescued-{os.getpid()}.fdrec"
    try:
        assert main(["record", key_of(queue), str(tmp_path / "a.fdrec")]) == 1
        assert f"is in {path}, in memory" in capsys.readouterr().err
        assert payloads(path) == [fp.encode(STEP)]
        assert os.stat(path).st_mode & 0o777 == 0o600
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def test_long_messages_are_refused_without_unpacking_them(queue, tmp_path, capsys, monkeypatch):
    """200 of them took 25 s."""
    path = tmp_path / "long.fdrec"
    with RecordingWriter(path, "plain") as writer:
        for _ in range(200):
            writer.write(bytes(1 << 20))
    monkeypatch.setattr(Recording, "_unpacked", lambda *arguments: pytest.fail("unpacked"))
    assert main(["replay", str(path), key_of(queue)]) == 1
    err = capsys.readouterr().err
    assert "nothing was sent: 200 of 200 messages cannot be:" in err
    assert "message 0: 1,048,576 bytes" in err


def test_a_key_in_every_spelling(queue, capsys):
    for number in f"{queue.key:#x}", str(queue.key), f"-{(1 << 32) - queue.key - (1 << 31):#x}":
        status = main(["inspect", f"key:{number}"])
        assert status == (1 if number.startswith("-") else 0)
    out = capsys.readouterr()
    assert f"0x{queue.key:08x}" in out.out
    assert "no such file" not in out.err.lower().split("opening")[0]


def test_replay_says_what_the_user_typed(recording, queue_id):
    told = command("replay", "-", "8400", stdin=subprocess.DEVNULL)
    assert told.returncode == 1
    assert b"standard input" in told.stderr
    for more in (), ("--path", "/dev/shm"):
        told = command("replay", recording, queue_id, *more)
        assert told.returncode == 1
        assert f"opening queue {queue_id}, key ".encode() in told.stderr
    told = command("replay", recording, queue_id, "--channel", "topk")
    assert told.returncode == 1
    assert b"holds messages of channel plain, not topk" in told.stderr
