"""FastDeploy's recorded steps, replayed on the plug-in's class: golden_steps/README.md.

Every event is judged by an independent model; events without a mark also by the recording, all of it.  A
marked event is a defect of FastDeploy's: there the model alone says what is right, and after a step that
FastDeploy lost it goes on alone to the end of the trace.
"""

import pytest

from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.step_replay.traces import Trace, tables, trace_names

pytestmark = pytest.mark.framework

# A message with flag 5, which no sender of FastDeploy's writes: its class takes it for a target, the gate for
# a message of another channel (test_numbers.py).
REFUSED = "spec_topk_h_other_flag"
NAMES = [name for name in trace_names() if name != REFUSED]


def two_channels_of_each(names):
    """Of each script by hand two channels at most; every channel has its turn, the others are nightly."""
    of_script = {}
    for name in names:
        of_script.setdefault(name.partition("_h_")[2], []).append(name)
    for turn, found in enumerate(of_script.values()):
        yield from {found[turn % len(found)], found[(turn + 1) % len(found)]}


BY_HAND = [name for name in NAMES if "_h_" in name]
RANDOM = sorted({*NAMES} - {*BY_HAND})
IN_THE_SUITE = [*two_channels_of_each(BY_HAND), *RANDOM[::12]]
THROUGH_TENSORS_TOO = [*BY_HAND[::6], *RANDOM[::32]]


def faults_of(name, cls, way="through_bytes"):
    """What is wrong in a trace on a class that is given bytes or tensors."""
    judge, deliver = imported("tests.lib.step_replay.judge"), imported("tests.lib.step_replay.deliver")
    tensors = way == "through_tensors"
    return judge.faults(Trace.load(name), cls, getattr(deliver, way), columns_needed=tensors)


def faulty(names, cls, way="through_bytes"):
    return {name: lines for name in names if (lines := faults_of(name, cls, way))}


@tables(IN_THE_SUITE, NAMES)
def test_golden_step_traces_replay_on_the_plugin(names):
    assert faulty(names, plugin_class()) == {}


@tables(THROUGH_TENSORS_TOO, NAMES)
def test_golden_step_traces_replay_through_tensors(names):
    assert faulty(names, plugin_class(), "through_tensors") == {}


@each(
    "name",
    [
        *(
            "plain_h_empty_batch",
            "plain_h_pd_prefill",
            "plain_h_finish_delay",
            "topk_h_preempt_v1",
            "topk_h_cols_0",
        ),
        *("spec_h_eos_position", "spec_h_count_7", "topk_h_columns", "spec_topk_h_draft_missing"),
        *("spec_topk_h_draft_gone_between", "spec_topk_h_clear_data", "spec_topk_r900_n64"),
        *("plain_h_dp2", "topk_h_dp2_ep", "spec_h_dp2_ep", "spec_topk_h_dp2"),
    ],
)
def test_step_traces_through_a_queue_and_the_receive_loop(name, raised_limits, ops_queue):
    if name not in NAMES:
        pytest.skip(f"{name} is not among the traces")
    judge, loop = (
        imported("tests.lib.step_replay.judge"),
        imported("tests.lib.step_replay.queue_loop").QueueLoop(),
    )
    try:
        lines = judge.faults(Trace.load(name), loop.watched(plugin_class()), loop, ignore=("op",))
    finally:
        loop.close()
    assert lines == []
    assert loop.processor.counters.malformed == (name == "spec_h_count_7")
    assert loop.processor.counters.lost_steps == 0


# ---- The judges notice ---------------------------------------------------------------------------------


def tampered_results(tamper):
    """A class whose results are changed on their way to the scheduler."""

    def plant(cls):
        class Planted(cls):
            def __init__(self, cfg, cached_generated_tokens, engine_worker_queue, split_connector):
                scheduler = cached_generated_tokens
                put, scheduler.put_results = scheduler.put_results, lambda results: put(tamper(results))
                super().__init__(
                    cfg=cfg,
                    cached_generated_tokens=scheduler,
                    engine_worker_queue=engine_worker_queue,
                    split_connector=split_connector,
                )

        return Planted

    plant.__name__ = tamper.__name__
    return plant


def tampered_state(tamper):
    """A class that changes its state after each step."""

    def plant(cls):
        class Planted(cls):
            def _process_step(self, *arguments):
                super()._process_step(*arguments)
                tamper(self)

        return Planted

    plant.__name__ = tamper.__name__
    return plant


@tampered_results
def late_counter(results):
    for result in results:
        result.outputs.send_idx += 1
    return results


@tampered_results
def last_result_lost(results):
    return results[:-1]


@tampered_results
def rank_as_float(results):
    for result in results:
        ranks = result.outputs.top_logprobs.sampled_token_ranks
        ranks[:] = map(float, ranks)
    return results


@tampered_results
def neighbours_draft(results):
    drafts = [result.outputs.draft_top_logprobs for result in results]
    for result, draft in zip(results, [*drafts[1:], *drafts[:1]], strict=True):
        result.outputs.draft_top_logprobs = draft
    return results


@tampered_results
def second_batch_first(results):
    return results[::-1]


@tampered_results
def end_without_error(results):
    for result in results:
        result.error_msg = None
    return results


@tampered_state
def target_overwritten(processor):
    processor._batch_result_buffer = None


@tampered_state
def slot_not_recycled(processor):
    manager = processor.resource_manager
    manager.calls[:] = [call for call in manager.calls if call[0] != "finish_requests_async"]


@tampered_state
def one_token_not_counted(processor):
    processor.number_of_output_tokens -= 1


@tampered_state
def one_observation_more(processor):
    imported("fastdeploy.metrics.metrics").main_process_metrics.request_success_total.inc(0.5)


@tampered_state
def zero_step_forgotten(processor):
    for name in processor.total_step_per_request:
        processor.total_step_per_request[name] -= 1


@each(
    "plant, name, where",
    [
        (late_counter, "plain_h_basic", "outputs.send_idx"),
        (late_counter, "spec_topk_h_draft_missing", "outputs.send_idx"),
        (last_result_lost, "topk_h_none_queue", "model: put"),
        (rank_as_float, "topk_h_basic", "outputs.top_logprobs[2][0]"),
        (neighbours_draft, "spec_topk_h_draft_inserted_between", "draft_top_logprobs"),
        (neighbours_draft, "spec_topk_h_draft_zero_counts", "draft_top_logprobs"),
        (second_batch_first, "spec_topk_h_draft_shorter", "model: put"),
        (end_without_error, "spec_h_recover_first", "error_msg"),
        (target_overwritten, "spec_topk_h_draft_missing", "buffered"),
        (slot_not_recycled, "plain_h_zero_e2e", "rm_calls"),
        (one_token_not_counted, "spec_h_none_start", "tokens"),
        (one_observation_more, "spec_h_basic", "metrics.fastdeploy:request_success_total"),
        (zero_step_forgotten, "spec_h_counts", "spec_tables.total_step_per_request"),
    ],
)
def test_a_planted_bug_is_noticed(plant, name, where):
    if name not in NAMES:
        pytest.skip(f"{name} is not among the traces")
    lines = faults_of(name, plant(plugin_class()))
    assert any(where in line for line in lines), lines


@each("name", ["plain_h_none_start", "spec_h_count_7", "spec_topk_h_draft_shorter"])
def test_the_stock_class_is_not_good_enough(name):
    stock = imported("fastdeploy.output.token_processor").TokenProcessor
    assert faults_of(name, stock, "through_tensors")
