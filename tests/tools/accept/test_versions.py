"""The differential trial on FastDeploys of other versions: which are served, and as what."""

import enum

import pytest

from tests.lib.other_classes import VARIANT, ours, same
from tests.lib.quiet import imported
from tools.accept.classes import compare
from tools.accept.features import Facts
from tools.accept.sandbox import Sandbox

pytestmark = pytest.mark.framework


# ---- What varies between versions ---------------------------------------------------------------------


def test_an_older_fastdeploy_is_not_served(variant, monkeypatch):
    monkeypatch.delattr(variant, "SpeculateMetrics")
    verdict = compare(variant, same)
    assert not verdict.compatible
    assert "has no SpeculateMetrics; served are FastDeploy 2.5 and newer" in verdict.reason


def test_requests_without_stamps_of_their_own_are_not_served(variant):
    variant.RequestMetrics = type("RequestMetrics", (), {})
    assert "no record_recv_token; served are FastDeploy 2.5 and newer" in compare(variant, same).reason


def test_requests_of_another_form_can_be_made(variant):
    """Arguments without a default, others missing, no status of a prefill that is running."""

    class Request(variant.Request):
        def __init__(self, request_id, sampling_params, prompt_token_ids_len, eos_token_ids, metrics):
            super().__init__(
                request_id,
                prompt_token_ids_len=prompt_token_ids_len,
                eos_token_ids=eos_token_ids,
                metrics=metrics,
                sampling_params=sampling_params,
            )

    variant.Request = Request
    variant.RequestStatus = enum.Enum("RequestStatus", "RUNNING RUNNING_DECODE")
    variant.RequestStatus.RUNNING_PREFILL = None
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason


def test_headers_without_columns_are_recognised_and_served(variant):
    Received = imported("tests.restated.messages").Received

    def decode_topk(self):
        batch, columns = int(self.output_tokens[1, 0]), self.fd.K + 1
        ids = self.output_tokens.numpy()[2 : 2 + batch * columns].reshape([batch, columns])
        scores = self.output_scores.numpy()[: batch * columns].reshape([batch, columns])
        ranks = self.output_ranks.numpy()[:batch]
        return Received(3, batch, None, ids.tolist(), scores.tolist(), ranks.tolist())

    variant.TokenProcessor._decode_topk = decode_topk
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason


def test_the_older_name_of_the_aborted_set_is_found(variant):
    def is_to_be_aborted(self, name):
        return name in self.resource_manager.abort_req_ids_set

    variant.TokenProcessor = type(
        "TokenProcessor",
        (variant.TokenProcessor,),
        {"_is_to_be_aborted": is_to_be_aborted, "__module__": __name__},
    )
    facts = Facts.of(variant, Sandbox(variant))
    assert facts.abort_set == "abort_req_ids_set"
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason


def labelled(variant):
    """FastDeploy's metrics since its pull request #7865, as far as one of them goes."""
    kept = []

    class Labelled(type(variant.main_process_metrics)):
        def __init__(self):
            pass

        def __getattr__(self, name):
            return getattr(real_metrics, name)

        def inc_value(self, name, value, labelvalues):
            kept.append((name, value, labelvalues))

        obs_value = set_value = inc_value

    def record(self, task, now, tokens):
        task.last_token_time = now
        self.fd.main_process_metrics.inc_value("generation_tokens_total", len(tokens), {"model": "m"})

    real_metrics = variant.main_process_metrics
    variant.main_process_metrics = Labelled()
    variant.TokenProcessor._record_metrics = record
    return kept


def test_labelled_metrics_are_compared_by_name_and_label(variant, monkeypatch):
    kept = labelled(variant)
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason
    assert kept == []

    def unlabelled(inherited, self, task, now, tokens):
        task.last_token_time = now
        self.fd.main_process_metrics.generation_tokens_total.inc(len(tokens))

    verdict = compare(variant, ours(_record_metrics=unlabelled))
    assert not verdict.compatible
    assert "generation_tokens_total" in verdict.reason


# ---- Our class on another FastDeploy ------------------------------------------------------------------


def changed_default(variant):
    def new_result(self, *arguments):
        result = StockNewResult(self, *arguments)
        result.outputs.reasoning_token_num = 7
        return result

    StockNewResult = variant.TokenProcessor._new_result
    variant.TokenProcessor._new_result = new_result


def added_field(variant):
    def finish(self, slot, task, result, *arguments):
        StockFinish(self, slot, task, result, *arguments)
        result.finish_reason = "stop"

    StockFinish = variant.TokenProcessor._finish
    variant.TokenProcessor._finish = finish


def renamed_key(variant):
    class RequestOutput(variant.RequestOutput):
        def to_dict(self):
            told = super().to_dict()
            told["is_finished"] = told.pop("finished")
            return told

    RequestOutput.__module__, RequestOutput.__qualname__ = VARIANT, "RequestOutput"
    variant.RequestOutput = RequestOutput


@pytest.mark.parametrize("plant", [changed_default, added_field])
def test_our_class_stands_aside_where_fastdeploys_step_differs(variant, plant):
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    plant(variant)
    verdict = compare(variant, make_class)
    assert not verdict.compatible
    assert any(word in verdict.reason for word in ("reasoning_token_num", "finish_reason")), verdict.reason


def test_our_class_follows_a_renamed_key(variant):
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    renamed_key(variant)
    verdict = compare(variant, make_class)
    assert verdict.compatible, verdict.reason
