"""The differential trial on FastDeploys of other versions: which are served, and as what."""

import pytest

from tests.lib.other_classes import VARIANT, difference_of, ours, same

pytestmark = pytest.mark.framework


# ---- What varies between versions ---------------------------------------------------------------------


def test_an_older_fastdeploy_is_not_served(variant, monkeypatch):
    monkeypatch.delattr(variant, "SpeculateMetrics")
    told = difference_of(variant, same)
    assert "has no SpeculateMetrics; served are FastDeploy 2.5 and newer" in told


def test_requests_without_stamps_of_their_own_are_not_served(variant):
    variant.RequestMetrics = type("RequestMetrics", (), {})
    assert "no record_recv_token; served are FastDeploy 2.5 and newer" in difference_of(variant, same)


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
    assert difference_of(variant, same) == ""
    assert kept == []

    def unlabelled(inherited, self, task, now, tokens):
        task.last_token_time = now
        self.fd.main_process_metrics.generation_tokens_total.inc(len(tokens))

    assert "generation_tokens_total" in difference_of(variant, ours(_record_metrics=unlabelled))


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
    assert difference_of(variant, make_class) == ""
