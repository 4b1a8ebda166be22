"""Requests that no thread of FastDeploy's schedules any more."""

from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.engine.health.unscheduled import Unscheduled
from tests.lib.rig import Rig
from tests.lib.rows import each

pytestmark = pytest.mark.framework


@pytest.fixture
def rig():
    """Requests "a" and "b" have a slot; the manager has "c", too, and the scheduler's table "d"."""
    one = Rig("topk", ["a", "b"])
    one.manager.requests["c"] = SimpleNamespace(idx=2)
    one.sink.requests = dict.fromkeys("abcd")
    one.ended = ()
    one.processor.parts.pairing.delivery.ended_threads = lambda: one.ended
    return one


def looks(rig, watch, begin, seconds):
    """What ends, by id, one look a half second."""
    before = len(rig.sink.puts)
    for tick in range(int(2 * seconds) + 1):
        watch.look(rig.processor, begin + tick / 2)
    results = [one for put in rig.sink.puts[before:] for one in put]
    for one in results:
        assert (one.finished, one.error_code) == (True, 500)
        assert any(thread in one.error_msg for thread in rig.ended)
    return sorted(one.request_id for one in results)


@each(
    "threads, role, ended",
    [
        ([], "mixed", []),
        (["receive_output_thread"], "mixed", []),  # nothing would arrive
        (["insert_task_to_scheduler_thread"], "mixed", []),  # nothing comes so far
        (["prepare_request_thread"], "mixed", ["d"]),  # the others' thread lives
        (["schedule_request_thread"], "mixed", ["c", "d"]),
        (["prepare_request_thread", "schedule_request_thread"], "mixed", ["c", "d"]),
        (["insert_task_to_scheduler_thread", "prepare_request_thread"], "mixed", ["d"]),
        (["insert_task_to_worker_thread"], "mixed", ["c", "d"]),
        (["insert_task_to_worker_thread"], "decode", []),
        (["insert_task_to_worker_thread"], "prefill", []),
    ],
)
def test_those_end_that_wait_for_a_thread_that_has_ended(threads, role, ended, rig):
    rig.processor.cfg.scheduler_config.splitwise_role = role
    rig.ended = threads
    assert looks(rig, Unscheduled(), 100, 5) == ended


def test_each_ends_once_after_a_while_and_again_if_its_id_is_used_again(rig):
    watch, rig.ended = Unscheduled(), ["schedule_request_thread"]
    before = rig.processor.counters.failed_requests
    assert looks(rig, watch, 100, 1.5) == []
    rig.sink.requests["e"] = None
    del rig.manager.requests["c"]
    del rig.sink.requests["c"]  # it has had its last result
    assert looks(rig, watch, 102, 1.5) == ["d"]
    assert looks(rig, watch, 104, 9) == ["e"]
    assert rig.processor.counters.failed_requests - before == 2
    del rig.sink.requests["d"]  # its client has the error, and asks again
    assert looks(rig, watch, 120, 3) == []
    rig.sink.requests["d"] = None
    assert looks(rig, watch, 130, 3) == ["d"]


def test_a_data_parallel_scheduler_keeps_a_local_one(rig):
    rig.ended = ["schedule_request_thread"]
    rig.sink._scheduler = SimpleNamespace(requests=rig.sink.requests)
    del rig.sink.requests
    assert looks(rig, Unscheduled(), 100, 5) == ["c", "d"]
