"""Who looks at requests besides their clients sees the same: tracing, the benchmark logger, routing replay.

Each scenario runs on FastDeploy's class and on the plug-in's.
"""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from tests.lib.fakes import Clock
from tests.lib.plugged import plugin_class, stock_class
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


class RoutingView:
    """Stands for the host's copy of every token's experts: here the number of its place in the cache."""

    def gather(self, places):
        return np.asarray(places)[:, None, None] * np.ones((1, 2, 2), np.int64)


def with_routing(store_type, store=None):
    def prepare(rig):
        config = imported("fastdeploy.config").RoutingReplayConfig(True, store_type)
        rig.processor.cfg.routing_replay_config = config
        rig.processor.routing_host_view, rig.processor._routing_block_size = RoutingView(), 8
        rig.processor.routing_cache_manager = store

    return prepare


@each("channel", CHANNELS)
def test_routing_in_the_response(run, channel):
    def routed(cls):
        _, results = run(cls, channel, with_routing("response"))
        return {
            result.request_id: result.routing_data.tolist()
            for result in results
            if result.routing_data is not None
        }, results

    expected, _ = routed(stock_class())
    actual, results = routed(plugin_class())
    assert actual == expected
    assert list(actual) == ["a_0", "c_0"]
    assert len(actual["c_0"]) == 7 + 3  # a row for each token of prompt and answer but the last
    assert actual["c_0"][0] == [[6 * 8] * 2] * 2
    (last,) = (result for result in results if result.request_id == "c_0" and result.finished)
    assert pickle.loads(pickle.dumps(last)).routing_data.tolist() == actual["c_0"]
    assert last.to_dict()["routing_data"] is last.routing_data
    assert all("routing_data" not in result.to_dict() for result in results if result.routing_data is None)


def test_routing_for_a_store_is_gathered_before_the_blocks_are_freed(run):
    def stored(cls):
        finished = []

        def note(request_id, block_table, seq_len):
            finished.append((request_id, [*block_table], seq_len))

        def prepare(rig):
            with_routing("local", SimpleNamespace(on_request_finished=note))(rig)
            free = rig.manager.finish_requests_async
            rig.manager.finish_requests_async = lambda name: (
                rig.requests[name].block_tables.clear(),
                free(name),
            )

        run(cls, "spec", prepare)
        return finished

    assert stored(plugin_class()) == stored(stock_class()) == [("a_0", [4, 8], 12), ("c_0", [6, 10], 10)]


@each("status", ["finished", "no route"])
def test_routing_of_a_prompt_goes_with_its_first_token(run, status):
    """The decode instance gets it, whatever became of the transfer later: it is gathered before."""

    def sent(cls):
        first = []

        def prepare(rig):
            with_routing("response")(rig)
            for task in rig.requests.values():
                task.disaggregate_info = {"role": "prefill"}
            names = [[name, status] for name in rig.requests]
            rig.transfers.answers = [names]
            rig.connector.send_first_token = lambda info, results: first.extend(results)

        run(cls, "spec", prepare, steps=({0: [11, 12], 1: [13], 2: [14]},), splitwise_role="prefill")
        return [(one.request_id, one.error_code, one.routing_data.tolist()) for one in first]

    expected = sent(stock_class())
    assert sent(plugin_class()) == expected
    assert [len(routing) for _, _, routing in expected] == [7, 7, 7]
