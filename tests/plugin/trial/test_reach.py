"""The plug-in's check of itself reaches the batch loop's fast path, not only the methods it falls back on."""

import pytest

from fd_postproc.fastdeploy.trial.compatibility import compare
from fd_postproc.fastdeploy.trial.sandbox import Sandbox
from fd_postproc.fastdeploy.trial.trial import Trial
from tests.lib.quiet import Double, imported

pytestmark = pytest.mark.framework


@pytest.fixture
def real():
    return Double().output__token_processor


@pytest.fixture
def quick(monkeypatch):
    """By script, the results of our class that `advance` did not make."""
    processor = imported("fd_postproc.fastdeploy.engine.processor_class")
    advance, run = processor.Parts.advance, Trial.run
    close, found = [], {}

    def kept(self, *arguments):
        close.append(advance(self, *arguments))
        return close[-1]

    def watched(self):
        close.clear()
        seen = run(self)
        if isinstance(self.processor, processor.Parts):
            known = {id(result) for result in close}
            put = [result for results in self.scheduler.put for result in results]
            found[self.script.name] = [
                result
                for result in put
                if id(result) not in known and result.metrics is not None and result.error_msg is None
            ]
        return seen

    monkeypatch.setattr(processor.Parts, "advance", kept)
    monkeypatch.setattr(Trial, "run", watched)
    return found


def test_the_fast_path_is_tried(real, quick):
    make_class = imported("fd_postproc.fastdeploy.engine.processor_class").make_class
    verdict = compare(real, make_class)
    assert verdict.compatible, verdict.reason
    without = {name for name, results in quick.items() if not results}
    assert without == {"speculation, prefill role", "speculation with logprobs, prefill role"}
    masked = [result.outputs.sampling_mask for result in quick["logprobs, sampling masks"]]
    assert masked == [[0, 1002]]
    assert [len(quick[f"{kind}, decode role"]) for kind in ("plain tokens", "speculation")] == [7, 7]
    assert any(result.outputs.top_logprobs for result in quick["speculation with logprobs"])


def test_it_is_tried_while_requests_are_traced(real, quick, monkeypatch):
    monkeypatch.setattr(real.tracing, "tracing_enabled", True)
    assert Sandbox(real).module.tracing.tracing_enabled is False
    compare(real, imported("fd_postproc.fastdeploy.engine.processor_class").make_class)
    assert quick["plain tokens"]


def test_a_difference_on_the_fast_path_alone_is_found(real, monkeypatch):
    """A FastDeploy that counts something more in each step: the fast path knows nothing of that."""
    stock = real.TokenProcessor._record_metrics

    def record(self, task, current_time, token_ids):
        stock(self, task, current_time, token_ids)
        self.fd.main_process_metrics.request_success_total.inc(0.25)

    monkeypatch.setattr(real.TokenProcessor, "_record_metrics", record)
    verdict = compare(real, imported("fd_postproc.fastdeploy.engine.processor_class").make_class)
    assert not verdict.compatible
    assert "request_success_total" in verdict.reason
