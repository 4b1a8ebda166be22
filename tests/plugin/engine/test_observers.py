"""Who looks at requests besides their clients sees the same: tracing, benchmark logger, routing, metrics.

Each scenario runs on FastDeploy's class and on the plug-in's.
"""

import time
from types import SimpleNamespace

import pytest

from tests.lib.fakes import Clock
from tests.lib.plugged import new_class, plugin_class, stock_class
from tests.lib.quiet import imported
from tests.lib.rig import END
from tests.lib.rows import each

pytestmark = pytest.mark.framework

CHANNELS = ("plain", "topk", "spec", "spec_topk")
BEGAN = 1_763_000_000.0


@pytest.fixture
def run(monkeypatch, rig_of):
    """A function that runs three requests to the end of two on a class; the rig and the results."""

    def act(cls, channel, prepare=lambda rig: None, steps=None, **mode):
        rig = rig_of(channel, cls=cls, **mode)
        assert type(rig.processor) is cls
        clock = Clock(BEGAN)
        monkeypatch.setattr(imported("fastdeploy.output.token_processor"), "time", clock)
        stamps = imported("fastdeploy.engine.request").RequestMetrics
        for slot, name in enumerate(["a_0", "b_0", "c_0"]):
            began = dict.fromkeys(("preprocess_end_time", "inference_start_time"), BEGAN - 1)
            task = rig.insert(name, slot, metrics=stamps(arrival_time=BEGAN - 2, **began))
            task.block_tables = [4 + slot, 8 + slot]
        prepare(rig)
        speculative = channel.startswith("spec")
        for tokens in steps or (
            {0: [11], 1: [12], 2: [13]},
            {0: [21, 22] if speculative else [21], 1: [23], 2: [24]},
            {0: [31], 1: [32], 2: [33]},
            {0: [41, END, 42] if speculative else [END], 1: [43], 2: [END]},
            {1: [51]},
        ):
            clock.sleep(0.03)
            rig.through_tensors(tokens)
        monkeypatch.undo()
        return rig, [result for results in rig.sink.puts for result in results]

    return act


@pytest.fixture
def trace(monkeypatch):
    """The tracing module, switched on."""
    trace = imported("fastdeploy.metrics.trace")
    trace.spans.clear(), trace.contexts.clear()
    trace.tracing_enabled = True
    yield trace
    trace.tracing_enabled = False
    trace.spans.clear(), trace.contexts.clear()


@each("channel", CHANNELS)
def test_traced_requests(run, trace, channel):
    """Two are traced by their sender, one is not; one is still running at the end."""

    def prepare(rig):
        for name in ("a_0", "b_0"):
            rig.requests[name].trace_carrier = {"root_span": {}, "prev_span": "SCHEDULE"}

    def seen(cls):
        trace.spans.clear(), trace.contexts.clear()
        _, results = run(cls, channel, prepare)
        left = {rid: list(threads.values()) for rid, threads in trace.contexts.items()}
        return list(trace.spans), left, [(result.request_id, result.trace_carrier) for result in results]

    expected = seen(stock_class())
    assert seen(plugin_class()) == expected
    spans, left, carriers = expected
    assert [span[:2] for span in spans] == [("PREFILL", "a"), ("PREFILL", "b"), ("DECODE", "a")]
    assert left == {"b": ["PREFILL"]}
    assert [carrier for carrier in carriers if carrier[1]] == [
        ("a_0", {"root_span": {"request": "a"}, "prev_span": "PREFILL"})
    ]


def test_tracing_that_is_switched_on_later(run, trace):
    """A request that ran before has its last span all the same."""
    trace.tracing_enabled = False

    def prepare(rig):
        rig.requests["a_0"].trace_carrier = {"root_span": {}, "prev_span": "SCHEDULE"}
        rig.through_tensors({0: [5], 1: [6], 2: [7]})
        trace.tracing_enabled = True

    run(plugin_class(), "plain", prepare)
    assert [span[:2] for span in trace.spans] == [("DECODE", "a")]
    assert trace.contexts == {}


@each("channel", CHANNELS)
def test_benchmark_records(run, channel):
    def records(cls):
        records = []
        logger = SimpleNamespace(on_request_completed=records.append)
        run(cls, channel, lambda rig: rig.processor.set_benchmark_logger(logger))
        return records

    expected, ours = records(stock_class()), records(plugin_class())
    assert [record.request_id for record in ours] == ["a_0", "c_0"]
    assert [len(record.itl_samples) for record in ours] == [3, 3]
    of_the_clock = ("completion_time", "itl_samples", "arrival_time", "inference_start_time")
    for name in ("request_id", "output_len", "input_len", "num_cached_tokens", *of_the_clock):
        assert [getattr(one, name) for one in ours] == [getattr(one, name) for one in expected], name
    for record in ours:  # stamped by the request itself, with the real clock
        assert record.arrival_time < record.first_token_time <= record.last_token_time


def test_routing_for_a_store_is_gathered_before_the_blocks_are_freed(run):
    def stored(cls):
        finished = []

        def note(request_id, block_table, seq_len):
            finished.append((request_id, [*block_table], seq_len))

        def prepare(rig):
            rig.processor.cfg.routing_replay_config.enable_routing_replay = True
            rig.processor.routing_cache_manager = SimpleNamespace(on_request_finished=note)
            free = rig.manager.finish_requests_async
            rig.manager.finish_requests_async = lambda name: (
                rig.requests[name].block_tables.clear(),
                free(name),
            )

        run(cls, "spec", prepare)
        return finished

    assert stored(plugin_class()) == stored(stock_class()) == [("a_0", [4, 8], 12), ("c_0", [6, 10], 10)]


# ---- Metrics that are updated by name: FastDeploy's pull request #7865 -------------------------------------

STEPS = (  # tokens by slot; 2 ends a request
    {0: [3], 1: [3], 2: [3]},
    {0: [4], 1: [4], 2: [4]},
    {0: [5], 1: [2], 2: [5]},
    {0: [6], 2: [6]},
)


class ByName(SimpleNamespace):
    """FastDeploy's metrics then, on the usual ones; which names were given."""

    def obs_value(self, name, value, labelvalues=None):
        self.names.append(name)
        getattr(self, name).observe(value)


def test_every_sample_is_that_of_metrics_without_names(rig_of, monkeypatch):
    module, seen = imported("fastdeploy.output.token_processor"), []
    metrics, samples = module.main_process_metrics, imported("tests.lib.step_replay.record").Samples
    for named in (False, True):
        clock = Clock()
        monkeypatch.setattr(time, "time", clock.time)
        rig = rig_of("plain", ["a", "b", "c"], cls=new_class())
        told = ByName(**vars(metrics), names=[])
        monkeypatch.setattr(module, "main_process_metrics", told if named else metrics)
        for tokens in STEPS:
            rig.through_tensors(tokens)
            clock.sleep(0.03)
        monkeypatch.undo()
        seen.append(samples().update())
        assert rig.processor.parts.journal.failed == set()
    assert seen[1] == seen[0]
    assert told.names == ["request_token_ratio"]
