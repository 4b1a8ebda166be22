"""Letting go of requests: what is kept about them, and who is told."""

import pytest

from fd_postproc.fastdeploy.engine.processor.ending import MOST_REQUESTS, TABLES
from tests.lib.rig import END
from tests.lib.rows import each


@pytest.fixture
def rig(rig_of):
    made = rig_of("spec", ("a", "b"))
    made.step({0: [50], 1: [60]})
    return made


def test_a_sweep_forgets_only_those_that_nobody_knows(rig):
    """One that waits for a slot again, preempted, has its counter on."""
    rig.manager.requests["waits"] = object()
    table = rig.processor.tokens_counter
    table["waits"] = 7
    table.update({f"gone {n}": 1 for n in range(MOST_REQUESTS)})
    rig.processor.parts.ending.sweep()
    assert {*table} == {"a", "b", "waits"}
    assert table["waits"] == 7
    rig.step({0: [END], 1: [61]})  # one that ends leaves nothing, nor does one that is given up
    rig.processor.parts.ending.give_up(1, rig.manager.tasks_list[1], OSError("planted"))
    for slot, name in enumerate("ab"):
        assert rig.has_left(name, slot)
        assert all(name not in getattr(rig.processor, table, ()) for table in TABLES)


@each("fails", [False, True])
def test_a_counter_is_fastdeploys_to_drop_unless_it_fails(rig_of, monkeypatch, fails):
    def recycle(*arguments):
        if fails:
            raise OSError("planted")

    rig = rig_of("plain", ("a", "b"))
    monkeypatch.setattr(rig.processor, "_recycle_resources", recycle)
    rig.step({0: [END], 1: [61]})
    assert ("a" in rig.processor.tokens_counter) is not fails


@each("managed", [True, False])
@each("channel", ["plain", "spec"])
@each("code", [-9, -1])
def test_an_abort_before_2_6_is_told_by_the_token_processor(managed, channel, code, rig_of, monkeypatch):
    """With the V1 scheduler when the worker has let it go; else at any negative code of a plain step."""
    rig = rig_of(channel, ("a", "b"))
    rig.step({0: [50], 1: [60]})
    monkeypatch.setattr(type(rig.processor), "aborts_itself", True)
    monkeypatch.setattr(rig.processor.fd.envs, "ENABLE_V1_KVCACHE_SCHEDULER", int(managed))
    rig.manager.abort_req_ids_set = {"a"}
    results = rig.step({0: code, 1: [61]})
    ends = code == -9 if managed else channel == "plain"
    told = [(one.finished, one.error_code, one.error_msg) for one in results.get("a", [])]
    assert told == ([(True, 499, "Your request with request_id:a is aborted.")] if ends else [])
    assert rig.manager.abort_req_ids_set == (set() if ends else {"a"})
    assert rig.has_left("a", 0) is ends
    assert "b" in results


@each("channel", ["plain", "spec"])
@each(
    "waiting, call",
    [
        ("to_be_aborted_req_id_set", "recycle_abort_task"),
        ("to_be_rescheduled_request_id_set", "reschedule_preempt_task"),
    ],
)
def test_a_request_leaves_once_the_worker_has_let_it_go(channel, waiting, call, rig_of):
    rig = rig_of(channel, ("a", "b"))
    rig.step()
    getattr(rig.manager, waiting).add("a")
    assert {*rig.step({0: -1, 1: [61]})} == {"b"}
    assert [call, "a"] not in rig.manager.calls
    rig.step({0: -9, 1: [62]})
    assert [call, "a"] in rig.manager.calls


def test_the_end_of_everything_frees_every_slot(rig_of):
    """What waits for its draft goes out before."""
    names = [f"r{slot}" for slot in range(8)]
    rig = rig_of("spec_topk", names, enable_draft_logprob=True)
    rig.requests["r1"].disaggregate_info = {"role": "decode"}
    rig.step()
    assert rig.sink.puts == []
    rig.processor.clear_data()
    waiting = rig.sink.puts.pop(0)
    assert [(one.request_id, one.finished) for one in waiting] == [(name, False) for name in names]
    assert all(rig.has_left(name, slot) for slot, name in enumerate(names))
    assert sorted(result.request_id for put in rig.sink.puts for result in put) == names
