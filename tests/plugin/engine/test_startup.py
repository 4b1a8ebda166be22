"""Before the first step: messages of a killed run, and the garbage collector."""

import collections
import gc
import os
import shutil
import subprocess
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import sysv_ipc

from fd_postproc import queues
from fd_postproc.fastdeploy.engine import stale_messages
from fd_postproc.fastdeploy.engine.processor import warmup
from fd_postproc.fastdeploy.engine.processor.warmup import Warmup
from fd_postproc.fastdeploy.engine.stale_messages import StaleMessages, own_queue_ids
from fd_postproc.support.process_stat import start_of
from tests.lib.children import in_a_child, python
from tests.lib.plugged import plugin_class
from tests.lib.rows import each
from tests.lib.waiting import until


def config(port):
    parallel = SimpleNamespace(local_data_parallel_id=0, local_engine_worker_queue_port=port)
    return SimpleNamespace(parallel_config=parallel)


@pytest.fixture
def queue(ops_queue, queue_id):
    """The queue of channel topk, with three messages: one of full size, one short, one of another program."""
    made = sysv_ipc.MessageQueue(queues.locate("topk"), sysv_ipc.IPC_CREAT, max_message_size=1 << 20)
    fill(made)
    return made


def fill(queue):
    for payload, mtype in (b"x" * 4096, 1), (b"y" * 8, 1), (b"z", 7):
        queue.send(payload, type=mtype)


def test_what_waits_when_the_engine_is_constructed_is_dropped(queue, queue_id, log, monkeypatch):
    messages = StaleMessages("topk", config(queue_id), log)
    assert messages.at_construction() == 3
    assert queue.current_messages == 0
    ((text,), _) = log.warning.call_args
    assert f"queue msqid:{queue.id} holds 3 messages" in text
    assert f"by process {os.getpid()}" in text
    queue.send(b"of this service's worker")
    monkeypatch.setattr(stale_messages, "_is_from_an_older_process", lambda queue: True)  # its launcher's
    assert messages.at_run() == 0
    assert queue.current_messages == 1


def test_at_run_messages_since_this_process_began_are_kept(queue, queue_id, log):
    """Of a queue that may be another service's, too, which is left alone at construction."""
    assert StaleMessages("topk", config(queue_id + 1), log).at_construction() == 0
    assert log.mock_calls == []
    assert StaleMessages("topk", config(queue_id + 1), log).at_run() == 0
    assert queue.current_messages == 3
    assert "since this process began" in str(log.mock_calls)


@each("sender, older", [(200, False), (5, True), (FileNotFoundError(), False)])
def test_whose_messages_are_older(monkeypatch, sender, older):
    """Not a worker's of this service, nor of one that is gone; but of an earlier run that sends on."""
    monkeypatch.setattr(stale_messages, "start_of", mock.Mock(side_effect=[sender, 100]))
    assert stale_messages._is_from_an_older_process(SimpleNamespace(last_send_pid=77)) is older


@each("seconds", [-3600, 60, 1625])
def test_a_clock_that_was_set_drops_no_fresh_message_and_keeps_no_old_one(
    seconds, queue, queue_id, log, monkeypatch
):
    """The queue's id becomes known after the construction, as in some of FastDeploy's versions."""
    if not queue.current_messages:  # of the row before
        fill(queue)
    messages = StaleMessages("topk", config(queue_id + 1), log)
    assert messages.at_construction() == 0
    queue.send(b"of this service's worker")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    assert messages.at_run() == 3
    assert queue.receive()[0] == b"of this service's worker"


def test_at_run_messages_from_before_this_process_are_dropped(queue, queue_id, log):
    in_a_child(StaleMessages("topk", SimpleNamespace(), log).at_run)
    assert queue.current_messages == 0  # the sender, this process, began before the child


@each("change, dropped", [(lambda q: None, 3), (lambda q: q.receive(), 0), (lambda q: q.send(b"a"), 0)])
def test_messages_of_a_sender_that_cannot_be_seen(change, dropped, queue, queue_id, log, monkeypatch):
    """Of another PID namespace: dropped, unless a service uses the queue meanwhile, whose they are then."""
    while queue.current_messages:  # of the row before
        queue.receive()
    fill(queue)
    monkeypatch.setattr(stale_messages, "_is_unseen", lambda queue: True)
    monkeypatch.setattr(stale_messages, "WATCH_S", 0)
    looks = iter([*[lambda q: None] * 5, change, *[lambda q: None] * 50])
    traffic = stale_messages._traffic
    monkeypatch.setattr(stale_messages, "_traffic", lambda q: (next(looks)(q), traffic(q))[1])
    assert StaleMessages("topk", config(queue_id), log).at_construction() == dropped
    assert "process 0" not in str(log.mock_calls)


def test_messages_are_kept_on_request(queue, queue_id, log, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_KEEP_STALE", "1")
    assert StaleMessages("topk", config(queue_id), log).at_construction() == 0
    assert queue.current_messages == 3
    assert "FD_POSTPROC_KEEP_STALE keeps them" in str(log.mock_calls)


@each(
    "parallel, ids",
    [
        ({"local_engine_worker_queue_port": 8002}, {"8002"}),
        ({"engine_worker_queue_port": ["8002", "8003"]}, {"8002", "8003"}),
        ({"engine_worker_queue_port": 8002, "local_data_parallel_id": 3}, {"8002", "8005"}),
        ({"engine_worker_queue_port": "8002"}, {"8002"}),
        ({"engine_worker_queue_port": object()}, set()),
        ({}, set()),
    ],
)
def test_the_numbers_that_fastdeploys_versions_give_a_queue(parallel, ids):
    assert own_queue_ids(SimpleNamespace(parallel_config=SimpleNamespace(**parallel))) == ids


def test_a_process_whose_name_is_no_text_is_none_the_less_one(tmp_path):
    program = tmp_path / os.fsdecode(b"\xff\xfe) \xf0")
    program.symlink_to(shutil.which("sleep"))
    child = subprocess.Popen([program, "60"])
    try:
        with open(f"/proc/{child.pid}/stat", "rb") as file:
            until(lambda: b"\xff" in file.read() or file.seek(0))
        assert start_of(child.pid) >= start_of("self")
    finally:
        child.kill()
        child.wait()


# ---- Garbage collection ----------------------------------------------------------------------------------


@pytest.fixture
def log():
    """Keeps what it is called with."""
    return mock.Mock()


def test_there_may_be_nothing_to_drop(ops_queue, queue_id, log):
    """No queue, which is not made for the sake of looking; an empty one; one that cannot be looked at."""
    assert StaleMessages("topk", config(queue_id), log).at_construction() == 0
    assert ops_queue.open("topk") is None
    sysv_ipc.MessageQueue(queues.locate("plain"), sysv_ipc.IPC_CREAT)
    assert StaleMessages("plain", config(queue_id), log).at_construction() == 0
    assert log.mock_calls == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERENCE_MSG_QUEUE_ID", "none")
        assert StaleMessages("topk", config(1), log).at_run() == 0
    assert "ValueError" in str(log.mock_calls)


@pytest.fixture
def freezes(monkeypatch):
    """How often gc.freeze was called; nothing is frozen."""
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(threading.get_ident()))
    monkeypatch.setattr(warmup, "_frozen", False)
    monkeypatch.delenv("FD_POSTPROC_GC", raising=False)
    return calls


def test_the_collector_is_told_once_after_some_steps_of_several_token_threads(freezes):
    warm = Warmup(steps=3)
    assert [warm.step() for _ in range(5)] == [False, False, True, False, False]
    assert warm.left == 0
    assert len(freezes) == 1
    warmup._frozen = False  # the fixture restores it
    freezes.clear()
    threads = [threading.Thread(target=Warmup(steps=1).step) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(freezes) == 1


@each("value", ["off", "OFF"])
def test_the_collector_is_left_alone_on_request(freezes, monkeypatch, value):
    monkeypatch.setenv("FD_POSTPROC_GC", value)
    monkeypatch.setattr(gc, "collect", lambda: freezes.append("collected"))
    warm = Warmup(steps=1)
    warm.begin()
    assert warm.step() is False
    assert freezes == []


def test_what_lives_is_really_frozen(monkeypatch):
    monkeypatch.delenv("FD_POSTPROC_GC", raising=False)
    code = """
import collections
import gc
from fd_postproc.fastdeploy.engine.processor.warmup import Warmup
warm = Warmup(steps=1)
warm.begin()
print(gc.get_freeze_count(), end=" ")
warm.step()
print(gc.get_freeze_count() > 1000)
"""
    told = subprocess.run(python(code), cwd="/", capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0", "True"]


# ---- In the token processor ------------------------------------------------------------------------------


@pytest.mark.framework
def test_the_token_processor_drains_and_warms_up(queue, queue_id, freezes, monkeypatch, rig_of):
    monkeypatch.setenv("FD_POSTPROC_PEER", "")
    monkeypatch.setattr(stale_messages, "own_queue_ids", lambda cfg: {str(queue_id)})
    rig = rig_of("topk")
    processor = rig.processor
    assert processor.counters.stale == 3
    queue.send(b"too short")
    rig.start()
    until(lambda: processor.counters.malformed)
    assert processor.counters.stale == 3
    for _ in range(warmup.STEPS):
        processor.parts.loop._handle(None, SimpleNamespace(process=lambda *_: None), None)
    assert len(freezes) == 1


def test_a_counter_of_another_class_is_left_to_fastdeploy(rig_of, monkeypatch):
    cls = plugin_class()
    stock, init = cls.stock, cls.stock.__init__

    def other(processor, *arguments, **named):
        init(processor, *arguments, **named)
        processor.tokens_counter = type("Halves", (collections.Counter,), {})()

    monkeypatch.setattr(stock, "__init__", other)
    assert type(rig_of("plain", cls=cls).processor) is stock
