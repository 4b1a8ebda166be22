"""Queue identity, administration and limits."""

import os
import subprocess

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import _core, queues
from tests.lib.children import python
from tests.lib.rows import each


@each("queue_id", [8002, (1 << 20) + 1, (1 << 20) + 8002, -1, (1 << 31) - 1])
def test_of_an_id_twenty_bits_count(queue_id, tmp_path):
    """The others are those of the path's file."""
    key, file = queues.queue_key(queue_id, str(tmp_path)), os.stat(tmp_path)
    assert key & 0xFFFFF == queue_id & 0xFFFFF
    assert key >> 20 & 0xFFF == (file.st_dev & 0xF) << 8 | file.st_ino & 0xFF
    assert -(1 << 31) <= key < 1 << 31


@each("access", [0, 0o100, 0o500])
def test_how_a_queue_is_used_is_one_of_three_numbers(access, queue_key):
    with pytest.raises(ValueError, match=f"access = {access:#o}"):
        queues.open_queue(queue_key, access=access)


@each("mode, told", [(0o600, False), (0o660, True), (0o606, True), (0o620, True)])
def test_who_may_use_a_queue_that_is_there_is_told(mode, told, queue_keys, caplog):
    caplog.clear()
    queue_key = queue_keys()
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=mode)
    for _ in range(2):
        queues.open_queue(queue_key)
    assert caplog.text.count(f"other users may use it (mode {mode:04o})") == told


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]
LOOK = "from fd_postproc import _core; print(_core._watch_readers({}, 0, 0.02, True))"


def test_a_queue_that_was_made_anew_has_no_other_reader(queue):
    """As with a restored snapshot: none has read it.  A reader of another PID namespace has."""

    def seen():
        done = subprocess.run([*NAMESPACE, *python(LOOK.format(queue.id))], capture_output=True, text=True)
        if "unshare: " in done.stderr:
            pytest.skip("a PID namespace of its own is not permitted here")
        return done.stdout

    assert seen() == "0\n"
    queue.send(b"a message")
    queue.receive()
    assert seen() == "-1\n"


def test_libc_ftok_is_libcs(tmp_path):
    for queue_id in (1, 8002, 8258, -1):
        expected = sysv_ipc.ftok(str(tmp_path), queue_id, silence_warning=True)
        assert queues.queue_key(queue_id, str(tmp_path), "libc") & 0xFFFFFFFF == expected & 0xFFFFFFFF


def test_every_channel_has_fastdeploys_path():
    assert queues.CHANNEL_PATHS == {
        "plain": "/dev/shm",
        "topk": "/dev/shm",
        "spec": "./",
        "spec_topk": "/dev/shm",
    }
    assert queues.locate("topk", 7) == queues.queue_key(7, "/dev/shm")
    for arguments in {"queue_id": 7}, {"key": 5}:
        with pytest.raises(ValueError, match="channel 'topkk' is not one of 'plain', 'topk', 'spec'"):
            queues.locate("topkk", **arguments)
    assert queues.locate("spec", 7) == queues.queue_key(7, ".")
    assert queues.locate("spec", 7, path="/dev/shm", ftok="libc") == queues.queue_key(7, "/dev/shm", "libc")


def test_the_id_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("INFERENCE_MSG_QUEUE_ID", raising=False)
    assert queues.locate("topk") == queues.locate("topk", 1)
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "8002")
    assert queues.locate("topk") == queues.locate("topk", 8002)


def test_key_0_would_be_a_private_queue(monkeypatch, tmp_path):
    real = os.stat(tmp_path)
    nothing = os.stat_result([real.st_mode, 0, 0, *real[3:]])
    monkeypatch.setattr(os, "stat", lambda path: nothing)
    with pytest.raises(ValueError, match="key 0"):
        queues.queue_key(0, str(tmp_path))


def test_inspect_and_remove(queue_key):
    with pytest.raises(fp.QueueMissing, match="start the other side first"):
        queues.open_queue(queue_key, create=False)
    msqid = queues.open_queue(queue_key)
    assert queues.open_queue(queue_key) == queues.open_queue(queue_key, create=False) == msqid
    sysv_ipc.MessageQueue(queue_key).send(b"12345")
    info = queues.inspect_queue(msqid)
    assert (info.key, info.messages, info.bytes, info.mode) == (queue_key, 1, 5, 0o600)
    assert info.max_bytes == queues.kernel_limits().msgmnb
    assert (info.last_sender, info.last_receiver) == (os.getpid(), 0)
    assert info.sent_at > 0
    assert info.received_at == 0
    assert info in queues.list_queues()
    queues.remove_queue(msqid)
    queues.remove_queue(msqid)
    with pytest.raises(fp.QueueMissing):
        queues.inspect_queue(msqid)


def test_too_many_queues(default_limits, queue_keys):
    for most, better in (0, 32000), (1, 2):
        default_limits("msgmni", most)
        for _ in range(most):
            queues.open_queue(queue_keys())
        told = rf"all {most} queues that kernel.msgmni allows .*sysctl -w kernel.msgmni={better}\)"
        with pytest.raises(fp.QueueError, match=told):
            queues.open_queue(queue_keys())


def test_peek_leaves_the_message(queue_key):
    msqid = queues.open_queue(queue_key)
    assert _core.peek(msqid) is None
    queue = sysv_ipc.MessageQueue(queue_key)
    queue.send(b"first")
    queue.send(b"second", type=3)
    try:
        assert _core.peek(msqid) == (1, b"first")
    except fp.QueueError as error:
        pytest.skip(f"this kernel copies no messages: {error}")
    assert _core.peek(msqid, 1) == (3, b"second")
    assert _core.peek(msqid, 2) is None
    assert queues.inspect_queue(msqid).messages == 2


def test_peek_names_the_limit_that_stops_it(raised_limits, queue_key):
    msqid = queues.open_queue(queue_key)
    sysv_ipc.MessageQueue(queue_key, max_message_size=20000).send(bytes(20000))
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    with pytest.raises(fp.QueueError, match="msgmax = 8192"):
        _core.peek(msqid)


@each(
    "numbers, text",
    [
        ({"max_batch": 0}, r"max_batch = 0 is outside 1\.\.65535"),
        ({"top_k": -1}, "top_k = -1"),
        ({"max_draft": 256}, "max_draft = 256"),
        ({"spec_batch": 65536}, "spec_batch = 65536"),
        ({"max_batch": 65535, "top_k": 1000}, "cells"),
        ({"max_batch": 512.0}, r"Layout.max_batch must be a whole number, not 512.0 \(float\)"),
        ({"top_k": True}, "bool"),
    ],
)
def test_layout_bounds(numbers, text):
    with pytest.raises((ValueError, TypeError), match=text):
        fp.Layout(**numbers)


def test_known_layouts():
    assert fp.Layout(512, 20, 6, 256) == fp.GPU
    assert fp.XPU == fp.GPU
    sizes = {channel: _core.payload_size(channel) for channel in _core.CHANNELS}
    assert sizes == {"plain": 2056, "topk": 88072, "spec": 7176, "spec_topk": 530448}
