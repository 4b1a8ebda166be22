"""Something that a step calls raises: nothing of the other requests is lost, and the loop goes on.

The request at fault goes on as if nothing had been, or ends with an error that its client sees.
"""

import contextlib
from types import SimpleNamespace
from unittest import mock

import msgpack
import numpy as np
import pytest

from tests.lib.quiet import imported
from tests.lib.rig import END
from tests.lib.rows import each

pytestmark = pytest.mark.framework

NAMES = ("a", "culprit", "c")
AT_FAULT = 1  # its slot


class Planted(Exception):
    """What is raised."""


def raising(*_, **__):
    raise Planted("planted by a test")


@pytest.fixture
def rig(rig_of):
    """A function that makes a rig with three requests that have had their first token."""

    def make(channel="spec_topk", warm=True, **mode):
        rig = rig_of(channel, NAMES, **mode)
        if warm:
            rig.step()
            rig.sink.puts.clear()
        return rig

    return make


def check_others(rig, results, tokens):
    """The other requests got all their tokens, in this step and, three steps long, ever after."""
    for slot, name in enumerate(NAMES):
        if name != "culprit":
            (result,) = results[name]
            assert result.outputs.token_ids == tokens[slot]
            assert (result.finished, result.error_code) == (END in tokens[slot], 200)
    for _ in range(3):
        counters = dict(rig.processor.tokens_counter)
        later = rig.step()
        for name in {*counters} & {"a", "c"}:
            (result,) = later[name]
            assert result.outputs.send_idx == counters[name]
            assert len(result.outputs.token_ids) == 1


def check_culprit(rig, results, tokens):
    """It got its tokens, or an error that can be sent and its slot back; never both, never nothing."""
    (result,) = results["culprit"]
    if result.error_code == 200:
        assert result.outputs.token_ids == tokens
        assert result.finished == (END in tokens)
    else:
        assert result.finished
        assert result.error_code == 500
        assert isinstance(result, imported("fastdeploy.engine.request").RequestOutput)
        assert "culprit" in result.error_msg or "request" in result.error_msg
        assert msgpack.unpackb(msgpack.packb(result.to_dict()))["error_msg"] == result.error_msg
        assert "culprit" not in rig.processor.total_step_per_request
    if result.finished:
        assert rig.has_left("culprit", AT_FAULT)


# ---- Around the step: whatever is only told --------------------------------------------------------


@contextlib.contextmanager
def module_name(name, value):
    with mock.patch.object(imported("fastdeploy.output.token_processor"), name, value):
        yield


def raising_object(*names):
    return SimpleNamespace(**dict.fromkeys(names, raising))


def raising_metrics():
    metrics = imported("fastdeploy.metrics.metrics").main_process_metrics
    told = raising_object("observe", "inc", "set")
    wrapped = {name: told for name, value in vars(metrics).items() if hasattr(value, "collect")}
    return module_name("main_process_metrics", SimpleNamespace(**{**vars(metrics), **wrapped}))


def raising_tracing(*names):
    tracing = imported("fastdeploy.metrics.trace")
    stack = contextlib.ExitStack()
    for name in names:
        stack.enter_context(mock.patch.object(tracing, name, raising))
    return stack


TOLD = {
    "metrics": raising_metrics,
    "trace_print": lambda: module_name("trace_print", raising),
    "trace context": lambda: raising_tracing("trace_set_proc_propagate_context"),
    "trace spans": lambda: raising_tracing("trace_report_span", "trace_get_proc_propagate_context"),
    "routing": lambda: mock.patch.object(
        imported("fastdeploy.output.token_processor").TokenProcessor, "_finalize_routing", raising
    ),
    "debug": lambda: mock.patch.object(imported("fastdeploy.utils").llm_logger, "debug", raising),
}


@each("told", TOLD)
@each("moment", ["first token", "running", "end"])
@each("channel", ["plain", "spec_topk"])
def test_what_is_only_told_disturbs_nobody(rig, told, moment, channel, fallbacks):
    rig = rig(channel, warm=moment != "first token")
    tokens = {0: [50], 1: [END if moment == "end" else 51], 2: [52]}
    before = fallbacks("metrics")
    with TOLD[told]():
        results = rig.step(tokens)
    assert (fallbacks("metrics") > before) is (told == "metrics")
    assert rig.escaped == []
    check_culprit(rig, results, tokens[AT_FAULT])
    assert results["culprit"][0].error_code == 200
    check_others(rig, results, tokens)


# ---- What a request's own step calls ---------------------------------------------------------------


@each(
    "call", ["finish_requests_async", "cache_output_tokens", "info", "available_batch", "total_block_number"]
)
@each("channel", ["topk", "spec"])
def test_a_resource_manager_that_raises_at_an_end(rig, call, channel):
    rig = rig(channel, enable_output_caching=True)
    tokens = {0: [50], 1: [END], 2: [52]}
    whole = getattr(rig.manager, call)

    def raise_once(*arguments):
        setattr(rig.manager, call, whole)
        raise Planted("planted by a test")

    setattr(rig.manager, call, raise_once)
    results = rig.step(tokens)
    (result,) = results["culprit"]
    assert result.finished
    assert result.outputs.token_ids == [END] or result.error_code == 500
    check_others(rig, results, tokens)
    assert rig.escaped == []
    if call != "finish_requests_async":
        assert rig.has_left("culprit", AT_FAULT)


@each("call", ["recycle_abort_task", "reschedule_preempt_task"])
@each("channel", ["plain", "spec_topk"])
def test_a_resource_manager_that_raises_at_a_preemption(rig, call, channel):
    rig = rig(channel)
    waiting = "aborted" if call == "recycle_abort_task" else "rescheduled"
    getattr(rig.manager, f"to_be_{waiting}_req{'uest' * (waiting != 'aborted')}_id_set").add("culprit")
    with mock.patch.object(rig.manager, call, raising):
        tokens = {0: [50], 1: -9, 2: [52]}
        results = rig.step(tokens)
    assert all(result.finished for result in results.get("culprit", ()))
    check_others(rig, results, tokens)
    assert rig.escaped == []


@each("what", ["get_finished_req", "send_first_token"])
def test_a_transfer_that_raises_on_a_prefill_instance(rig, what):
    rig = rig("spec", warm=False, splitwise_role="prefill")
    for task in rig.requests.values():
        task.disaggregate_info = {"role": "prefill"} if task.request_id == "culprit" else None
    rig.transfers.answers = [[["culprit", "finished"]]]
    holder = rig.transfers if what == "get_finished_req" else rig.connector
    tokens = {0: [50], 1: [51], 2: [52]}
    with mock.patch.object(holder, what, raising):
        results = rig.step(tokens)
    (result,) = results["culprit"]
    assert result.finished
    assert result.error_code != 200 or result.outputs.token_ids == [51]
    assert rig.has_left("culprit", AT_FAULT)
    check_others(rig, results, tokens)
    assert rig.escaped == []


# ---- A transfer that takes long ----------------------------------------------------------------------


@pytest.fixture
def prefilling(rig):
    """A function that makes a prefill instance; how the culprit's transfer goes, nobody says."""

    def make():
        one = rig("spec", warm=False, splitwise_role="prefill")
        one.requests["culprit"].disaggregate_info = {"role": "prefill"}
        assert {*one.step({0: [50], 1: [51, 53], 2: [52]})} == {"a", "c"}
        assert not one.has_left("culprit", AT_FAULT)
        return one

    return make


@each("status, code", [("finished", 200), ("no route", 501)])
def test_a_slow_transfer_keeps_nobody_else_waiting(prefilling, status, code):
    rig = prefilling()
    for turn in range(3):
        results = rig.step({0: [60 + turn], 1: [70 + turn], 2: [80 + turn]})
        assert {*results} == {"a", "c"}
        assert [results[name][0].outputs.send_idx for name in ("a", "c")] == [1 + turn] * 2
    assert rig.requests["culprit"].output_token_ids == [51]
    rig.sink.puts.clear()
    rig.transfers.answers = [[["someone else", "finished"]], [["culprit", status]]]
    rig.processor.parts.ending.serve_transfers()
    assert rig.sink.puts == []
    rig.processor.parts.ending.serve_transfers()
    ((result,),) = rig.sink.puts
    assert (result.request_id, result.finished, result.error_code) == ("culprit", True, code)
    assert ("no route" in (result.error_msg or "")) is (code != 200)
    assert (result.outputs.token_ids, result.outputs.draft_token_ids) == ([51], [51, 53])
    assert [call[1] for call in rig.connector.sent] == [{"role": "prefill"}]
    assert rig.has_left("culprit", AT_FAULT)
    assert rig.escaped == []


def test_over_zeromq_the_result_of_a_slow_transfer_goes_to_no_scheduler(prefilling, monkeypatch):
    """As FastDeploy has it there, unless the scheduler is the one for prefill and decode nodes."""
    rig = prefilling()
    rig.sink.puts.clear()
    rig.transfers.answers = [[["culprit", "finished"]]]
    monkeypatch.setattr(type(rig.processor), "receives_objects", True)
    rig.processor.parts.ending.serve_transfers()
    assert rig.sink.puts == []
    assert rig.has_left("culprit", AT_FAULT)


@each("what", ["get_finished_req", "send_first_token", "finish_requests_async"])
def test_a_late_transfer_whose_end_raises(prefilling, what):
    """Its client is told once, whatever happens, and the next steps are as ever."""
    rig = prefilling()
    rig.sink.puts.clear()
    rig.transfers.answers = [[["culprit", "finished"]]]
    holders = {"get_finished_req": rig.transfers, "send_first_token": rig.connector}
    with mock.patch.object(holders.get(what, rig.manager), what, raising), contextlib.suppress(Planted):
        rig.processor.parts.ending.serve_transfers()
    with contextlib.suppress(Planted):
        rig.processor.parts.ending.serve_transfers()
    assert [[result.request_id for result in results] for results in rig.sink.puts] == [["culprit"]]
    assert rig.sink.puts[0][0].finished
    assert rig.processor.parts.transfers.waiting == {}
    assert {*rig.step({0: [60], 2: [61]})} == {"a", "c"}


def test_of_a_clear_during_its_transfer_a_client_is_told_once(prefilling):
    rig = prefilling()
    rig.sink.puts.clear()
    rig.processor.clear_data()
    rig.transfers.answers = [[["culprit", "finished"]]]
    rig.processor.parts.ending.serve_transfers()
    assert [{result.request_id for result in results} for results in rig.sink.puts] == [
        {"a", "c"},
        {"culprit"},
    ]


def test_the_outcome_of_a_transfer_is_not_kept(prefilling):
    """Another request of the same name would be handed over with it."""
    rig = prefilling()
    rig.processor._recycle_resources = lambda *given: None  # not every FastDeploy's takes it out itself
    rig.transfers.answers = [[["culprit", "finished"]]]
    rig.processor.parts.ending.serve_transfers()
    assert rig.processor.parts.transfers.waiting == {}
    assert "culprit" not in rig.processor.prefill_result_status


@each("taken_over", [False, True])
def test_a_request_that_is_gone_while_its_transfer_is_under_way(prefilling, taken_over):
    """Its slot may be another's by then, which must not be freed; nothing is kept about it forever."""
    rig = prefilling()
    manager = rig.manager
    manager.stop_flags[AT_FAULT], manager.tasks_list[AT_FAULT] = True, None
    manager.requests.pop("culprit"), manager.req_dict.pop("culprit")
    if taken_over:
        rig.insert("next", AT_FAULT)
    tokens = {0: [60], 1: [61], 2: [62]} if taken_over else {0: [60], 2: [62]}
    results = rig.step(tokens)
    rig.processor.parts.ending.serve_transfers()
    assert {*results} == ({"a", "c", "next"} if taken_over else {"a", "c"})
    assert rig.processor.parts.transfers.waiting == {}
    if taken_over:
        assert manager.tasks_list[AT_FAULT].request_id == "next"
        assert rig.step({1: [63]})["next"][0].outputs.send_idx == 1
    assert rig.escaped == []


def test_an_abort_while_a_transfer_is_under_way(prefilling):
    rig = prefilling()
    rig.manager.to_be_aborted_req_id_set.add("culprit")
    results = rig.step({0: [60], 1: -9, 2: [62]})
    assert [(result.finished, result.error_msg) for result in results["culprit"]] == [(True, "Aborted")]
    rig.sink.puts.clear()
    rig.transfers.answers = [[["culprit", "finished"]]]
    rig.processor.parts.ending.serve_transfers()
    assert rig.sink.puts == []
    assert rig.processor.parts.transfers.waiting == {}
    assert rig.manager.tasks_list[AT_FAULT] is None


# ---- Odd tasks ---------------------------------------------------------------------------------------

ATTRIBUTES = (
    *("metrics", "eos_token_ids", "output_token_ids", "status", "messages", "trace_carrier", "ic_req_data"),
    *("disaggregate_info", "multimodal_inputs", "prompt_token_ids_len", "num_cached_tokens"),
    *("need_prefill_tokens", "num_computed_tokens"),
)


def test_stamps_that_raise_are_counted(rig, fallbacks):
    rig, before = rig("plain", warm=False), fallbacks("stamps")
    tokens = {0: [50], 1: [51], 2: [52]}
    metrics = imported("fastdeploy.engine.request").RequestMetrics
    with mock.patch.object(metrics, "record_recv_first_token", raising):
        results = rig.step(tokens)
    check_culprit(rig, results, tokens[AT_FAULT])
    check_others(rig, results, tokens)
    assert fallbacks("stamps") == before + 3


@each("name", ATTRIBUTES)
@each("moment", ["first token", "running", "end"])
def test_a_task_without_an_attribute(rig, name, moment):
    rig = rig("spec_topk", warm=moment != "first token")
    delattr(rig.requests["culprit"], name)
    tokens = {0: [50, 60], 1: [51, END] if moment == "end" else [51], 2: [52]}
    results = rig.step(tokens)
    check_culprit(rig, results, tokens[AT_FAULT])
    check_others(rig, results, tokens)
    assert rig.escaped == []


@each(
    "name, value, harmless",
    [
        ("eos_token_ids", None, False),
        ("eos_token_ids", (END,), True),
        ("eos_token_ids", {END}, True),
        ("eos_token_ids", frozenset({END}), True),
        ("eos_token_ids", np.array([END]), True),
        ("eos_token_ids", [np.int64(END)], True),
        ("eos_token_ids", [], False),
        ("eos_token_ids", 7, False),
        ("output_token_ids", None, False),
        ("output_token_ids", (), False),
        ("metrics", None, False),
        ("metrics", SimpleNamespace(), False),
        ("multimodal_inputs", 7, False),
        ("request_id", 7, False),
        ("last_token_time", "yesterday", True),
        ("last_token_time", None, True),
        ("status", "RUNNING_PREFILL", True),
        ("get", None, False),
    ],
)
def test_a_task_with_an_odd_attribute(rig, name, value, harmless):
    rig = rig("spec_topk")
    setattr(rig.requests["culprit"], name, value)
    tokens = {0: [50], 1: [51, END], 2: [52, END]}
    results = rig.step(tokens)
    if name == "request_id":
        assert "culprit" not in results  # nobody can be told
    elif name == "eos_token_ids" and not harmless and value != 7:
        assert results["culprit"][0].outputs.token_ids == [51, END]  # no token ends it
    else:
        check_culprit(rig, results, tokens[AT_FAULT])
    if harmless:
        assert results["culprit"][0].error_code == 200
    check_others(rig, results, tokens)
    assert rig.escaped == []


# ---- What a step itself calls ----------------------------------------------------------------------


@each("draft_logprobs", [False, True])
def test_a_scheduler_that_raises_loses_its_own_batch_only(rig, draft_logprobs):
    rig = rig(enable_draft_logprob=draft_logprobs)
    with mock.patch.object(rig.sink, "put_results", raising):
        rig.step()
        rig.step()
    counters = dict(rig.processor.tokens_counter)
    results = rig.step({0: [50], 1: [51], 2: [52]})
    if draft_logprobs:
        results = rig.step({0: [9], 1: [9], 2: [9]}, flag=4)
    for name in NAMES:
        assert results[name][-1].outputs.send_idx == counters[name]
    assert [len(rig.requests[name].output_token_ids) for name in NAMES] == [4] * 3


@each("second", ["target", "end", "draft", "abort"])
def test_a_waiting_batch_that_cannot_be_put_takes_no_other_with_it(rig, second):
    rig = rig(enable_draft_logprob=True)  # its first step waits for its draft
    put, failures = rig.sink.put_results, [Planted("planted by a test")]

    def fail_once(results):
        if failures:
            raise failures.pop()
        put(results)

    rig.sink.put_results = fail_once
    rig.manager.to_be_aborted_req_id_set.add("culprit")
    tokens = {0: [50], 1: {"end": [END], "abort": -9}.get(second, [51]), 2: [52]}
    flag = 4 if second == "draft" else 3
    first = rig.step(tokens, flag=flag)
    later = rig.step({0: [60], 2: [END]})
    told = {name: [*first.get(name, ()), *later.get(name, ())] for name in NAMES}
    assert [result.outputs.token_ids for result in told["c"]] == [[52], [END]][second == "draft" :]
    assert [result.outputs.token_ids for result in told["a"]] == [[50], [60]][second == "draft" :]
    if second in ("end", "abort"):
        assert [result.finished for result in told["culprit"]] == [True]


@pytest.mark.falls_back
def test_drafts_that_cannot_be_paired_hold_nothing_back(rig, fallbacks):
    rig, before = rig(enable_draft_logprob=True), fallbacks("token processor")
    rig.processor.postprocess([SimpleNamespace(outputs=None)], 4)
    assert [[one.request_id for one in results] for results in rig.sink.puts] == [[*NAMES]]
    assert fallbacks("token processor") == before + 1


@each("channel", ["plain", "topk", "spec"])
def test_no_step_without_drafts_or_log_probabilities_waits_for_a_draft(rig_of, channel):
    rig = rig_of(channel, NAMES, enable_draft_logprob=True)
    assert {*rig.step()} == {*NAMES}


@each("masks", [None, [], "masks", {1: 7}, {"1": [7]}, raising])
def test_odd_sampling_masks(rig, masks):
    rig = rig("plain", use_sampling_mask=True, warm=False)
    rig.processor.sampling_mask_zmq_server.close()

    def receive(block=False):
        return raising() if masks is raising else (None, masks)

    rig.processor.sampling_mask_zmq_server = SimpleNamespace(receive_pyobj_once=receive, close=lambda: None)
    tokens = {0: [50], 1: [51], 2: [52]}
    results = rig.step(tokens)
    check_culprit(rig, results, tokens[AT_FAULT])
    assert results["culprit"][0].outputs.sampling_mask == (7 if masks == {1: 7} else None)
    check_others(rig, results, tokens)


def test_a_plain_dict_for_a_counter(rig):
    rig = rig("spec")
    rig.processor.tokens_counter = {"a": 5, "culprit": 1, "c": 1}
    tokens = {0: [50, 60], 1: [51, END], 2: [52]}
    results = rig.step(tokens)
    assert results["a"][0].outputs.send_idx == 5
    check_culprit(rig, results, tokens[AT_FAULT])
    check_others(rig, results, tokens)
    assert rig.escaped == []


def test_a_draft_message_wider_than_the_slots(rig):
    rig = rig(enable_draft_logprob=True)
    rig.manager.stop_flags, rig.manager.tasks_list = rig.manager.stop_flags[:3], rig.manager.tasks_list[:3]
    rig.step({0: [50], 1: [51], 2: [52]})
    results = rig.step({0: [9], 1: [9], 2: [9], 6: [9]}, flag=4)
    assert [one.outputs.draft_top_logprobs is None for name in NAMES for one in results[name]] == [False] * 3


@each("holder", ["stop_flags", "tasks_list"])
def test_a_message_wider_than_the_slots(rig, holder):
    """A worker with more slots than the engine: what is beyond belongs to nobody."""
    rig = rig("plain")
    setattr(rig.manager, holder, getattr(rig.manager, holder)[:3])
    results = rig.step({0: [50], 1: [51], 2: [52], 6: [53]})
    assert [results[name][0].outputs.token_ids for name in NAMES] == [[50], [51], [52]]
