"""Pipes, FIFOs and standard streams; what is done with a message that cannot be written."""

import contextlib
import errno
import os
import subprocess
import threading

import pytest

import fd_postproc as fp
from fd_postproc.cli import main, streams
from fd_postproc.core.layout import Layout
from fd_postproc.recording import Recording, RecordingWriter
from tests.lib.children import FD_POSTPROC
from tests.lib.commands import flat, key_of, payloads
from tests.lib.waiting import PATIENCE

STEP = fp.Step.from_arrays("plain", [1, -1], [7])


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "some.fdrec"
    with RecordingWriter(path, "plain") as writer:
        for token in range(3):
            writer.write(fp.encode(fp.Step.from_arrays("plain", [1], [token])), time_ns=token)
    return path


def test_inspect_reads_a_pipe_and_a_fifo(run, recording, tmp_path):
    command = [FD_POSTPROC, "inspect", "-", "--index", "2"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, input=recording.read_bytes())
    assert b"Message 2" in done.stdout
    for content, told in (recording.read_bytes(), "Message 0"), (b"abc", "3 bytes, mtype 1"):
        fifo = tmp_path / f"fifo{len(content)}"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=[content])
        writer.start()
        assert told in flat(run("inspect", fifo)[1])
        writer.join()


def test_a_file_is_read_from_where_the_shell_has_left_it(recording, tmp_path, monkeypatch):
    """``{ read line; fd-postproc inspect -; } < file``: what was read before is not read again."""
    (tmp_path / "two").write_bytes(b"a line\n" + recording.read_bytes())
    with open(tmp_path / "two", "rb", buffering=0) as file:
        file.readline()
        monkeypatch.setattr(streams, "_input", lambda: os.dup(file.fileno()))
        with streams.open_input(streams.STANDARD) as opened:
            assert opened.read() == recording.read_bytes()


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


def test_a_full_disk_and_a_full_queue_lose_no_message(queue, tmp_path, full_disk, capsys, monkeypatch):
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send(STEP)
    monkeypatch.setattr("fd_postproc.cli.queue_io.RawQueue.put", lambda *arguments: False)
    path = f"/dev/shm/fd-postproc-rescued-{os.getpid()}.fdrec"
    try:
        how = ["--layout", "256,20,6,256", "--channel", "plain"]
        assert main(["record", key_of(queue), str(tmp_path / "a.fdrec"), *how]) == 1
        assert f"is in {path}, in memory" in capsys.readouterr().err
        assert payloads(path) == [fp.encode(STEP)]
        with Recording(path) as rescued:
            assert (rescued.channel, rescued.layout) == ("plain", Layout(256, 20, 6, 256))
        assert os.stat(path).st_mode & 0o777 == 0o600
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
