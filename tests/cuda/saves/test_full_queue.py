"""A full queue, and several threads that save tensors on a device."""

import threading

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops.device import saves
from tests.lib.device_saves import FLAG, save
from tests.lib.rows import each
from tests.lib.sending import in_thread
from tests.lib.waiting import signalled, until

pytestmark = [pytest.mark.usefixtures("streams"), pytest.mark.realtime]


def fill(ops_queue):
    """Make the queue so short that it holds three messages, and save as many as fit it and the ring."""
    save(0)
    assert ops.flush(60)
    ops_queue.open("plain").max_size = 40
    for n in range(1, 3 + 8):
        save(n)


@each("on_host", [False, True])
def test_a_full_queue_holds_up_the_caller_after_eight_steps(on_host, ops_queue):
    """A host tensor waits for what was saved before, too."""
    waits = ops.save_stats()["waits"]
    fill(ops_queue)
    until(lambda: max(lane.waiting_seconds for lane in saves.lanes))
    assert not ops.flush(0.001)
    before, begun = ops.save_stats(), threading.Event()

    def last():
        begun.set()
        save(11) if not on_host else ops.save_output(np.array([[11]]), FLAG, np.zeros(1, np.int32), 0, False)

    def is_held():
        held, seconds = (ops.save_stats()[name] - before[name] for name in ("held", "held_seconds"))
        return held == 1 and seconds > 0

    with in_thread(last) as outcome:
        until(begun.is_set if on_host else is_held)
        assert not outcome
        with fp.Receiver("plain") as receiver:
            assert [receiver.receive(5).token_ids(0)[0] for _ in range(12)] == list(range(12))
    assert ops.flush(60)
    after = ops.save_stats()
    assert after["held"] == before["held"] + (not on_host)
    assert after["waits"] > waits
    assert after["lost"] == before["lost"]
    ops_queue.open("plain").max_size = 16384


def test_removing_a_full_queue_wakes_everybody(ops_queue):
    fill(ops_queue)
    held, lanes = ops.save_stats()["held"], [*saves.lanes]
    with in_thread(lambda: [save(n) for n in range(20)]) as outcome:
        until(lambda: ops.save_stats()["held"] > held)
        ops_queue.open("plain").remove()
    assert isinstance(outcome[0], fp.QueueRemoved)
    until(lambda: not any(lane.waiting_seconds for lane in lanes))


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
