"""The differential trial on FastDeploys of other versions: which are served, and as what."""

import enum

import pytest

from tests.lib.other_classes import VARIANT, ours, same
from tests.restated.messages import Received
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


def is_to_be_aborted(self, name):
    return name in self.resource_manager.abort_req_ids_set


def decode_topk(self):
    """Of a message whose header has no columns."""
    batch, columns = int(self.output_tokens[1, 0]), self.fd.K + 1
    ids = self.output_tokens.numpy()[2 : 2 + batch * columns].reshape([batch, columns])
    scores = self.output_scores.numpy()[: batch * columns].reshape([batch, columns])
    ranks = self.output_ranks.numpy()[:batch]
    return Received(3, batch, None, ids.tolist(), scores.tolist(), ranks.tolist())


def test_what_an_older_fastdeploy_has_otherwise(variant):
    """Requests' arguments and states, headers without columns, the name of the set of aborted requests."""

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
    body = {"_is_to_be_aborted": is_to_be_aborted, "_decode_topk": decode_topk, "__module__": __name__}
    variant.TokenProcessor = type("TokenProcessor", (variant.TokenProcessor,), body)
    with Sandbox(variant) as box:
        assert Facts.of(variant, box).abort_set == "abort_req_ids_set"
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


def renamed_key(variant):
    class RequestOutput(variant.RequestOutput):
        def to_dict(self):
            told = super().to_dict()
            told["is_finished"] = told.pop("finished")
            return told

    RequestOutput.__module__, RequestOutput.__qualname__ = VARIANT, "RequestOutput"
    variant.RequestOutput = RequestOutput


def test_our_class_follows_a_renamed_key(variant):
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    renamed_key(variant)
    verdict = compare(variant, make_class)
    assert verdict.compatible, verdict.reason
