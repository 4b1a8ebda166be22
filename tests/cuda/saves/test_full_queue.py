"""A full queue, and several threads that save tensors on a device."""

import threading
import time

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops.device import saves
from tests.lib.device_saves import FLAG, save
from tests.lib.waiting import signalled

pytestmark = [pytest.mark.usefixtures("streams"), pytest.mark.realtime]


def fill(ops_queue):
    """Make the queue so short that it holds three messages, and save as many as fit it and the ring."""
    save(0)
    assert ops.flush(60)
    ops_queue.open("plain").max_size = 40
    for n in range(1, 3 + 8):
        save(n)


def test_a_full_queue_holds_up_the_caller_after_eight_steps(ops_queue):
    save(0)  # or there are no counters
    assert ops.flush(60)
    ops_queue.take("plain")
    before = ops.save_stats()
    fill(ops_queue)
    assert not ops.flush(0.1)
    assert max(lane.waiting_seconds for lane in saves.lanes) > 0.05
    done = threading.Event()
    thread = threading.Thread(target=lambda: (save(11), done.set()))
    thread.start()
    assert not done.wait(0.2)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(12)] == list(range(12))
    thread.join()
    assert ops.flush(60)
    after = ops.save_stats()
    assert after["held"] == before["held"] + 1
    assert after["held_seconds"] - before["held_seconds"] > 0.1
    assert after["waits"] > before["waits"]
    assert after["lost"] == before["lost"]


def test_a_host_tensor_waits_for_what_was_saved_before(ops_queue):
    fill(ops_queue)
    done = threading.Event()
    host = np.array([[11]])
    thread = threading.Thread(
        target=lambda: (ops.save_output(host, FLAG, np.zeros(1, np.int32), 0, False), done.set())
    )
    thread.start()
    assert not done.wait(0.2)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(12)] == list(range(12))
    thread.join()


def test_removing_a_full_queue_wakes_everybody(ops_queue):
    fill(ops_queue)
    errors = []

    def save_more():
        try:
            for n in range(20):
                save(n)
        except fp.QueueRemoved as error:
            errors.append(error)

    thread = threading.Thread(target=save_more)
    thread.start()
    time.sleep(0.1)
    ops_queue.open("plain").remove()
    thread.join(10)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_handler_that_raises_ends_a_save_that_waits(ops_queue):
    """As Ctrl-C does; nothing is lost but the step that was not saved."""
    fill(ops_queue)

    def stop(_, frame):
        if frame.f_code.co_filename.endswith("device.py"):  # it waits there
            raise InterruptedError

    with signalled(stop, lambda: True, repeat=True), pytest.raises(InterruptedError):
        save(11)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(11)] == list(range(11))
        assert ops.flush(60)
        assert receiver.receive(0) is None


def test_threads(ops_queue):
    """Each thread's messages keep their order."""

    def work(first):
        for n in range(50):
            save(1000 * first + n)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    with fp.Receiver("plain") as receiver:
        found = [receiver.receive(10).token_ids(0)[0] for _ in range(200)]
    for thread in threads:
        thread.join()
    for first in range(4):
        assert [n for n in found if n // 1000 == first] == [1000 * first + n for n in range(50)]
