"""The double behaves as FastDeploy where the token processor and its plug-in look."""

import copy
import dataclasses
import inspect
import os
import pickle
import queue
import re
import threading

import pytest

from tests.lib.paths import TESTS
from tests.lib.quiet import Double, imported
from tests.lib.rows import each
from tests.lib.step_replay.traces import Trace

pytestmark = pytest.mark.framework


@pytest.fixture
def double():
    """The double's modules by name."""
    return Double()


def result(double, name="r", token_ids=(5,), finished=False):
    request = double.engine__request
    outputs = request.CompletionOutput(index=0, send_idx=0, token_ids=list(token_ids), draft_token_ids=[])
    outputs.top_logprobs = double.worker__output.LogprobsLists([[5, 6]], [[-0.5, -1.0]], [1])
    metrics = request.RequestMetrics(arrival_time=1.0)
    return request.RequestOutput(name, outputs=outputs, finished=finished, metrics=metrics)


# ---- Classes -------------------------------------------------------------------------------------------


def test_defaults_of_results(double):
    request = double.engine__request
    fresh = vars(request.RequestOutput("x"))
    shown = ("prompt_token_ids", "output_type", "error_code", "trace_carrier")
    assert [fresh[key] for key in shown] == [[], 3, 200, {}]
    assert fresh["trace_carrier"] is vars(request.RequestOutput("y"))["trace_carrier"]
    assert fresh["prompt_token_ids"] is not vars(request.RequestOutput("y"))["prompt_token_ids"]

    fields = dataclasses.fields(request.CompletionOutput)
    assert [field.name for field in fields[:4]] == ["index", "send_idx", "token_ids", "decode_type"]
    assert len(fields) == 19
    assert len(dataclasses.fields(request.RequestMetrics)) == 37
    assert not hasattr(request.CompletionOutput(0, 0, []), "__dict__")
    assert not hasattr(request.RequestMetrics(), "__dict__")
    assert request.RequestMetrics().arrival_time is not None
    assert request.PoolingRequestOutput("x", None, [], True).error_code == (200,)


def test_key_order_is_the_recorded_one(double):
    trace = Trace.load("topk_h_basic", TESTS / "golden_steps")
    recorded = next(step for step in trace.events if "after" in step)["after"]["put"][0][0]
    sent = result(double).to_dict()
    assert list(sent) == list(recorded)
    assert list(sent["outputs"]) == list(recorded["outputs"])
    assert list(sent["metrics"]) == list(recorded["metrics"])


def test_a_request_as_constructed(double):
    request = double.engine__request
    task = request.Request("x", prompt_token_ids_len=7)
    assert len(inspect.signature(request.Request).parameters) == 50
    assert (task.ic_req_data, task.status, task.need_prefill_tokens) == (
        (None,),
        request.RequestStatus.WAITING,
        7,
    )
    assert task.get("prefill_chunk_info", "none") == "none"
    task.sampling_params = double.engine__sampling_params.SamplingParams(top_p=0.5)
    assert task.get("top_p") == 0.5
    assert not hasattr(task, "last_token_time")


def test_logprobs_slices(double):
    lists = double.worker__output.LogprobsLists([[1, 2], [3, 4]], [[-1.0, -2.0], [-3.0, -4.0]], [1, 2])
    assert lists.slice_rows(1, 2) == ([[3, 4]], [[-3.0, -4.0]], [2])
    columns = lists.slice_columns(0, 1)
    assert columns == ([[1], [3]], [[-1.0], [-3.0]], [1, 2])
    assert columns.sampled_token_ranks is lists.sampled_token_ranks


def test_add_extends_the_first_results_lists(double):
    first, second = result(double, token_ids=[5]), result(double, token_ids=[6], finished=True)
    row = second.outputs.top_logprobs.logprob_token_ids[0]
    first.add(second)
    assert first.finished
    assert first.outputs.token_ids == [5, 6]
    assert first.outputs.top_logprobs.logprob_token_ids[1] is row


def test_results_copy_and_pickle(double):
    original = result(double)
    again = pickle.loads(pickle.dumps(original))
    assert again.to_dict() == original.to_dict()
    assert type(original.metrics).__module__ == "fastdeploy.engine.request"
    assert copy.copy(original.metrics) == original.metrics


# ---- Switches, metrics ---------------------------------------------------------------------------------


def test_switches_are_read_at_each_access(double, monkeypatch):
    envs = double.envs
    monkeypatch.setenv("ENABLE_V1_KVCACHE_SCHEDULER", "0")
    assert envs.ENABLE_V1_KVCACHE_SCHEDULER == 0
    monkeypatch.delenv("ENABLE_V1_KVCACHE_SCHEDULER")
    assert envs.ENABLE_V1_KVCACHE_SCHEDULER == 1
    monkeypatch.delenv("FD_PLUGINS", raising=False)
    assert envs.FD_PLUGINS is None
    monkeypatch.setenv("FD_PLUGINS", "a,b")
    assert envs.FD_PLUGINS == ["a", "b"]
    with pytest.raises(AttributeError, match="NO_SUCH_SWITCH"):
        _ = envs.NO_SUCH_SWITCH


def test_metrics_are_in_multiprocess_mode(double):
    metrics = double.metrics__metrics
    manager = metrics.main_process_metrics
    manager.reset()

    def counted():
        """Of all processes that this one has had."""
        return float(
            re.search(r"^fastdeploy:generation_tokens_total (.*)$", metrics.get_filtered_metrics(), re.M)[1]
        )

    before = counted()
    manager.generation_tokens_total.inc(3)
    manager.time_per_output_token.observe(0.02)
    files = os.listdir(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    assert f"counter_{os.getpid()}.db" in files
    assert counted() == before + 3
    assert 'fastdeploy:time_per_output_token_seconds_bucket{le="0.025"}' in metrics.get_filtered_metrics()
    manager.reset()
    assert counted() == before


def test_speculative_metrics_appear_on_first_use_and_leave_on_reset(double):
    manager = double.metrics__metrics.main_process_metrics
    manager.reset()
    assert not hasattr(manager, "spec_decode_draft_acceptance_rate")
    manager._init_speculative_metrics("mtp", 2)
    assert len(manager.spec_decode_draft_single_head_acceptance_rate) == 2
    manager.reset()
    manager._init_speculative_metrics("ngram", 2)
    assert not hasattr(manager, "spec_decode_efficiency")
    manager.reset()


# ---- From the scheduler to the client ------------------------------------------------------------------


def test_the_scheduler_formats_every_result(double):
    shown = []

    class Shown(double.engine__request.RequestOutput):
        def __repr__(self):
            shown.append(self.request_id)
            return "shown"

    scheduler = double.scheduler__local_scheduler.LocalScheduler()
    scheduler.put_requests([double.engine__request.Request(name) for name in "ab"])
    scheduler.put_results([Shown("a"), Shown("b")])
    assert shown == ["a", "b"]
    scheduler.put_results([Shown("a", finished=True)])
    assert shown == ["a", "b", "a", "a"]  # once with the list, once because one was waiting
    fetched = scheduler.get_results()
    assert shown == ["a", "b", "a", "a", "a", "a", "b"]
    assert [len(fetched[name]) for name in "ab"] == [2, 1]
    assert "a" not in scheduler.requests
    assert scheduler.get_results() == {}


@pytest.fixture
def engine(double, monkeypatch):
    """An engine on the stock class, whatever plug-ins are installed."""
    stubs, stock = imported("tests.lib.step_replay.stubs"), double.output__token_processor.TokenProcessor
    monkeypatch.setattr(double.engine__common_engine, "TokenProcessor", stock)
    engine = double.engine__common_engine.EngineService(double.config.FDConfig(), stubs.ResourceManager(4))
    engine.scheduler.put_requests([double.engine__request.Request(name) for name in "ab"])
    server = double.inter_communicator.ZmqIpcServer("test_fastdeploy_double", "PUSH")
    engine.send_response_server = server
    engine.client = double.inter_communicator.ZmqIpcClient("test_fastdeploy_double", "PULL")
    yield engine
    server.close()
    engine.token_processor._finalizer()


def test_one_message_a_step(double, engine):
    first, empty = result(double, "a", finished=True), result(double, "b", token_ids=[])
    expected = copy.deepcopy(first.to_dict())
    engine.scheduler.put_results([first, empty])
    engine.send_generated_tokens_once()
    (received,) = engine.client.receive(timeout=0)
    expected["outputs"] |= {"top_logprobs": [[[5, 6]], [[-0.5, -1.0]], [1]], "text": ""}
    assert received == [expected]
    assert list(received[0]) == list(expected)
    with pytest.raises(queue.Empty):
        engine.client.receive(timeout=0)


def test_text_replaces_tokens_and_text(double, engine, monkeypatch):
    monkeypatch.setenv("FD_ENABLE_RETURN_TEXT", "1")
    engine.scheduler.put_results([result(double, "a", token_ids=[7, 8])])
    engine.send_generated_tokens_once()
    ((received,),) = engine.client.receive(timeout=0)
    assert (received["outputs"]["text"], received["outputs"]["token_ids"]) == ("7 8", [7, 8])


def test_one_message_a_request_without_batches(double, engine, monkeypatch):
    monkeypatch.setenv("ZMQ_SEND_BATCH_DATA", "0")
    engine.scheduler.put_results([result(double, "a"), result(double, "b")])
    engine.send_generated_tokens_once()
    messages = [engine.client.receive(timeout=0) for _ in range(2)]
    assert [[entry["request_id"] for entry in message] for message in messages] == [["a"], ["b"]]


def test_the_internal_adapter_gets_steps(double, engine, monkeypatch):
    monkeypatch.setenv("FD_ENABLE_INTERNAL_ADAPTER", "1")
    engine.scheduler.put_results([result(double, "a"), result(double, "b")])
    engine.scheduler.put_results([result(double, "a")])
    engine.send_generated_tokens_once()
    steps = engine.client.receive(timeout=0)
    assert [[entry["request_id"] for entry in step] for step in steps] == [["a", "b"], ["a"]]


# ---- The token processor's life ------------------------------------------------------------------------


def test_from_the_message_to_the_client(double, engine, monkeypatch):
    """A token thread and a send thread, as the engine starts them."""
    EndOfScript = imported("tests.lib.step_replay.replay").EndOfScript
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    ops = double.model_executor__ops__gpu
    fill, payload = (
        imported("tests.lib.step_replay.tensors").fill,
        imported("tests.lib.step_replay.traces").payload,
    )
    trace = Trace.load("plain_h_basic", TESTS / "golden_steps")
    message = next(event for event in trace.events if "message" in event)
    requests = [imported("tests.lib.step_replay.replay").make_request(entry) for entry in trace.requests]
    for slot, request in enumerate(requests):
        engine.resource_manager.insert(request, slot)
    engine.scheduler.put_requests(requests)
    waiting = [message]

    def get_output(tokens, rank, wait):
        if not waiting:
            raise EndOfScript
        fill("plain", [tokens], payload(waiting.pop()))

    monkeypatch.setattr(ops, "get_output", get_output)
    engine.start(name="test_fastdeploy_double")
    received = engine.client.receive(timeout=10)
    engine.stop()
    engine.token_processor.worker.join(10)
    recorded = message["after"]["put"][0]
    assert [[entry["outputs"]["token_ids"] for entry in step] for step in received] == [
        [entry["outputs"]["token_ids"]] for entry in recorded
    ]
    assert engine.token_processor.healthy()
    with pytest.raises(Exception, match="already"):
        engine.token_processor.run()


def test_what_construction_and_start_insist_on(double, engine):
    module = double.output__token_processor
    with pytest.raises(AssertionError):
        engine.token_processor.set_resource_manager(engine.resource_manager)
    fresh = module.TokenProcessor(
        cfg=double.config.FDConfig(),
        cached_generated_tokens=None,
        engine_worker_queue=None,
        split_connector=None,
    )
    with pytest.raises(AssertionError):
        fresh.run()
    fresh._finalizer()
    with pytest.raises(TypeError):
        module.WarmUpTokenProcessor(double.config.FDConfig())


@each(
    "logprobs, method, shapes",
    [
        (False, None, [[514, 1]]),
        (True, None, [[512 * 21 + 2, 1], [512 * 21, 1], [512]]),
        (False, "mtp", [[256 * 7 + 2]]),
        (True, "mtp", [[512 * 126 + 515, 1], [512 * 126, 1], [3072]]),
    ],
)
def test_buffers(double, logprobs, method, shapes):
    cfg = double.config.FDConfig()
    cfg.model_config.enable_logprob, cfg.speculative_config.method = logprobs, method
    processor = double.output__token_processor.TokenProcessor(cfg, None, None, None)
    tensors = [getattr(processor, f"output_{name}", None) for name in ("tokens", "scores", "ranks")]
    tensors = [tensor for tensor in tensors if tensor is not None]
    assert [list(tensor.shape) for tensor in tensors] == shapes
    assert (tensors[0].numpy() == 2).all()
    processor._finalizer()


def test_health(double, monkeypatch):
    processor = double.output__token_processor.TokenProcessor(double.config.FDConfig(), None, None, None)
    assert processor.healthy()
    processor.timestamp_for_alive_before_handle_batch = 0.0
    assert not processor.healthy()
    monkeypatch.setenv("FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT", str(10**10))
    assert processor.healthy()
    processor.timestamp_for_alive_after_handle_batch = 1.0
    assert processor.healthy()
    processor.engine_output_token_hang = True
    assert not processor.healthy()
    processor._finalizer()
