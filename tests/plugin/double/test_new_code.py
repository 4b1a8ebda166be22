"""A statement that nobody knows, in any of FastDeploy's functions: the gate closes the seams that have it."""

import pytest

from fd_postproc.fastdeploy import gate
from fd_postproc.fastdeploy.engine import activation
from tests.lib.quiet import Double
from tests.lib.rows import each

pytestmark = pytest.mark.framework

STEP = (
    *("process_sampling_results", "process_sampling_results_use_zmq", "_process_batch_output", "postprocess"),
    *(
        "_process_batch_output_use_zmq",
        "_process_slot",
        "_append_tokens",
        "_new_result",
        "_finish",
        "_let_go",
    ),
    *("_process_batch_draft_tokens", "_is_decode_stage", "_observe_ratio", "clear_data", "_stream_result"),
    *("_record_speculative_decoding_metrics", "_decode_plain", "_decode_spec_topk", "_cache_output"),
)
CLOSED = {
    **{f"TokenProcessor.{name}": {"token processor"} for name in STEP},
    "TokenProcessor._record_metrics": {"token processor", "metrics"},
    "Request.get": {"token processor"},
    "RequestOutput.__init__": {"token processor"},
    "ZmqIpcServer.recv_pyobj": {"token processor"},
    "RequestOutput.to_dict": {"dictionaries"},
    "CompletionOutput.to_dict": {"dictionaries"},
    "RequestMetrics.to_dict": {"dictionaries"},
    "RequestMetrics.record_recv_token": {"stamps"},
    "LocalScheduler.put_results": {"delivery", "wake-up"},
    "LocalScheduler.get_results": {"delivery", "wake-up"},
    "ScheduledResponse.__init__": {"delivery"},
    "ZmqServerBase._send_batch_response": {"sending"},
    "OpenAIServingChat._create_chat_logprobs": {"api chunks"},
    "EngineService._zmq_send_generated_tokens": {"sending"},
}
SEEN = (
    "token processor",
    "dictionaries",
    "stamps",
    "metrics",
    "delivery",
    "wake-up",
    "sending",
    "api chunks",
)


@pytest.fixture
def module():
    double = Double()
    assert double.scheduler__local_scheduler
    assert double.inter_communicator__zmq_server
    assert double.engine__common_engine
    return double.output__token_processor


@each("name, closed", CLOSED.items())
def test_new_code_closes_its_seams_and_no_other(name, closed, module, monkeypatch):
    functions_of, statements_of, changed = gate.functions_of, gate.statements_of, []

    def found(row, *place):
        for named, function in functions_of(row, *place):
            changed.extend([function] if named.rpartition(":")[2] == name else [])
            yield named, function

    def read(function):
        told = statements_of(function)
        return [*told, told[-1]._replace(digest="new")] if function in changed else told

    assert activation.decide(module).compatible
    monkeypatch.setattr(gate, "functions_of", found)
    monkeypatch.setattr(gate, "statements_of", read)
    places = {"token processor": module, "api chunks": Double().entrypoints__openai__serving_chat}
    reasons = {seam: gate.judge(seam, places.get(seam)).reason for seam in SEEN}
    assert {seam for seam, reason in reasons.items() if reason} == closed
    assert all(f"{name} has new code in line " in reasons[seam] for seam in closed)
