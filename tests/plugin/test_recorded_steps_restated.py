"""FastDeploy's recorded steps, replayed on the restated step: golden_steps/README.md.

FD_POSTPROC_GOLDEN_STEPS=FOLDER reads other traces.  With FD_POSTPROC_FASTDEPLOY=PATH the traces run on that
tree's own class too.
"""

import contextlib
import json
import os
import re

import pytest

from tests.lib.paths import TESTS
from tests.lib.quiet import imported
from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.traces import FOLDER, Trace, trace_names

pytestmark = pytest.mark.framework

NAMES = trace_names()
RANDOM = re.compile(r"_r\d+_")
CLASSES = ["installed", "restated"] if os.environ.get("FD_POSTPROC_FASTDEPLOY") else ["restated"]


def token_processor(kind="restated"):
    """The class of the module that FastDeploy's engine imports, or the restated step on it."""
    module = imported("fastdeploy.output.token_processor")
    bind = imported("tests.restated").bind
    return module.TokenProcessor if kind == "installed" else bind(module)


def replay_on(cls, trace):
    """Lines that say what differs: those of the first step that does, or of the end."""
    with imported("tests.lib.step_replay.replay").Replay(trace, cls) as replay:
        for step in replay.steps():
            lines = differences(step.expected, step.actual)
            if lines:
                return [f"step {step.number}: {line}" for line in lines]
        return [f"end: {line}" for line in differences(*replay.end())]


def test_golden_step_traces_are_those_of_the_index():
    index = json.loads((FOLDER / "index.json").read_text())
    assert sorted(entry["name"] for entry in index) == NAMES
    assert NAMES


def test_recorded_test_data_stays_small():
    folder = TESTS
    size = sum(
        path.stat().st_size for name in ("golden", "golden_steps") for path in (folder / name).rglob("*.*")
    )
    assert size < 8e6


# The random runs and two thirds of the others, on the restated step: nightly.  (On the plug-in
# all that were made by hand run every time, in test_plugin_steps.py.)
OFTEN = [name for name in NAMES if not RANDOM.search(name)][::3]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.nightly]) for name in NAMES]
)
def test_golden_step_traces_replay_equal(name, kind):
    assert replay_on(token_processor(kind), Trace.load(name)) == []


# ---- The comparison notices ----------------------------------------------------------------------------


def late_counter(cls):
    class Planted(cls):
        def _new_result(self, *arguments):
            result = super()._new_result(*arguments)
            result.outputs.send_idx += 1
            return result

    return Planted


def rank_as_float(cls):
    class Planted(cls):
        def _decode(self):
            received = super()._decode()
            return received._replace(ranks=[float(rank) for rank in received.ranks])

    return Planted


def one_observation_more(cls):
    class Planted(cls):
        def _record_completion_metrics(self, task, now):
            super()._record_completion_metrics(task, now)
            self.fd.main_process_metrics.request_success_total.inc(0.5)

    return Planted


def shared_metrics(cls):
    class Planted(cls):
        def _stamp(self, task, now, rid):
            super()._stamp(task, now, rid)
            return task.metrics

    return Planted


def draft_kept_twice(cls):
    class Planted(cls):
        def _deliverable(self, results, mtype):
            buffer = self._batch_result_buffer
            deliverable = super()._deliverable(results, mtype)
            self._batch_result_buffer = self._batch_result_buffer or buffer
            return deliverable

    return Planted


def zero_step_forgotten(cls):
    class Planted(cls):
        def _record_speculative_decoding_accept_num_per_request(self, name, count):
            if count:
                super()._record_speculative_decoding_accept_num_per_request(name, count)

    return Planted


def recycled_before_cached(cls):
    class Planted(cls):
        def _finish(self, slot, task, *arguments):
            self.resource_manager.calls.reverse()
            super()._finish(slot, task, *arguments)
            self.resource_manager.calls.reverse()

    return Planted


def abort_not_rescheduled(cls):
    class Planted(cls):
        def _let_go(self, name, task):
            if name not in self.resource_manager.to_be_aborted_req_id_set:
                super()._let_go(name, task)

    return Planted


def exception_swallowed(cls):
    class Planted(cls):
        def _process_batch_output(self):
            with contextlib.suppress(ZeroDivisionError):
                super()._process_batch_output()

    return Planted


def adapter_ignored(cls):
    class Planted(cls):
        def _append_tokens(self, slot, task, tokens, received, result, *rest):
            super()._append_tokens(slot, task, tokens, received, result, *rest)
            result.outputs.token_ids[:] = [token for token in tokens if token != -3][
                : len(task.output_token_ids)
            ]

    return Planted


@pytest.mark.parametrize(
    ("plant", "name", "where"),
    [
        (late_counter, "plain_h_basic", "put[0][0].outputs.send_idx"),
        (rank_as_float, "topk_h_basic", "put[0][0].outputs.top_logprobs[2][0]"),
        (one_observation_more, "spec_h_basic", "metrics.fastdeploy:request_success_total"),
        (shared_metrics, "spec_h_basic", "task_metrics.req-1.speculate_metrics"),
        (draft_kept_twice, "spec_topk_h_draft_paired", "buffered"),
        (zero_step_forgotten, "spec_h_counts", "spec_tables.total_step_per_request"),
        (recycled_before_cached, "plain_h_output_caching", "rm_calls"),
        (abort_not_rescheduled, "topk_h_preempt_v1", "rm_calls"),
        (exception_swallowed, "plain_h_zero_e2e", "raised"),
        (adapter_ignored, "topk_h_adapter", "put[0]"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_golden_step_traces_notice_a_planted_bug(plant, name, where):
    if name not in NAMES:
        pytest.skip(f"{name} is not among the traces of {FOLDER}")
    lines = replay_on(plant(token_processor()), Trace.load(name))
    assert any(where in line for line in lines), lines


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"put": [[1]]}, {"put": [[1.0]]}),
        ({"put": [[1]]}, {"put": [[True]]}),
        ({"put": [[0.0]]}, {"put": [[-0.0]]}),
        ({"put": [{"a": 1, "b": 2}]}, {"put": [{"b": 2, "a": 1}]}),
        ({"put": [[]]}, {"put": []}),
        ({"put": []}, {}),
        ({}, {"put": []}),
        ({"metrics": [["a_sum", {}, 1.0]]}, {"metrics": [["a_sum", {}, 1.0 + 1e-6]]}),
        ({"metrics": [["a_bucket", {"le": "1"}, 1.0]]}, {"metrics": [["a_bucket", {"le": "2"}, 1.0]]}),
    ],
)
def test_the_comparison_is_strict(expected, actual):
    assert differences(expected, actual, sum_tolerance=1e-9)
    assert not differences(expected, expected)


def test_only_sums_have_a_tolerance_and_only_on_request():
    near, exact = ([["a_sum", {}, 1.0 + extra]] for extra in (1e-12, 0.0))
    assert differences({"metrics": exact}, {"metrics": near})
    assert not differences({"metrics": exact}, {"metrics": near}, sum_tolerance=1e-9)
    counts = [[["a_count", {}, 1.0 + extra]] for extra in (1e-12, 0.0)]
    assert differences({"metrics": counts[0]}, {"metrics": counts[1]}, sum_tolerance=1e-9)


def test_the_replayers_tensors_are_those_that_fastdeploys_ops_filled(received_golden):
    """These messages went through FastDeploy's own get ops; the replayer writes packed ones only."""
    legacy = received_golden.channel in ("topk", "spec_topk") and received_golden.dialect == "legacy"
    if legacy:
        return
    fill = imported("tests.lib.step_replay.tensors").fill
    tensors = received_golden.empty_tensors()
    fill(received_golden.channel, tensors, received_golden.payload)
    for tensor, recorded in zip(tensors, received_golden.tensors, strict=True):
        assert tensor.tolist() == recorded.tolist()


# ---- The load that is timed ----------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["plain", "topk", "spec", "spec_topk_target", "spec_topk_draft"])
def test_the_timed_load_is_steady_decode(channel):
    """Every request gets its tokens in every step, in all columns, and none ends."""
    workload = imported("tests.restated.workload")
    accepted, columns = (4 if "spec" in channel else 1), (6 if "topk" in channel else 1)
    case = workload.Case(channel, columns, accepted, batch=5)
    load = workload.Load(imported("fastdeploy.output.token_processor"), token_processor(), case)
    for step in range(3):
        load.step()
        if channel == "spec_topk_draft":
            assert load.sink.last == []  # no target waits for it
            continue
        assert [result.outputs.send_idx for result in load.sink.last] == [1 + step * accepted] * 5
        assert not any(result.finished for result in load.sink.last)
        for result in load.sink.last:
            assert len(result.outputs.token_ids) == accepted
            if case.logprobs:
                assert [len(row) for row in result.outputs.top_logprobs.logprobs] == [columns] * accepted
    load.processor._finalizer()


def test_taking_parts_out_leaves_the_names_as_they_were():
    shares = imported("tests.restated.shares")
    module = imported("fastdeploy.output.token_processor")
    classes = module.RequestOutput, module.RequestMetrics, module.Request
    before = [dict(vars(cls)) for cls in classes]
    for case in shares.PROFILED[:1]:
        whole, parts = shares.shares(module, token_processor(), shares.Case(*case, 3), steps=1, passes=1)
        assert whole > 0
        assert abs(sum(parts.values()) - 100) < 1e-6
    assert before == [dict(vars(cls)) for cls in classes]
