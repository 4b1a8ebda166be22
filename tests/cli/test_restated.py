"""The demo's restated step, held to the laboratory's, which reproduces FastDeploy's recorded runs."""

import pytest

from fd_postproc._core import step_from_tensors
from fd_postproc.cli import restated
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework


@pytest.fixture
def load():
    """The laboratory's token processor, and its message: 256 requests, 2 tokens each, 21 columns."""
    workload, module = imported("tests.restated.workload"), imported("fastdeploy.output.token_processor")
    case = workload.Case("spec_topk_target", 21, 2, 256)
    return workload.Load(module, imported("tests.restated").bind(module), case)


def test_it_makes_the_same_results(load):
    tensors = [load.processor.output_tokens, load.processor.output_scores, load.processor.output_ranks]
    step = step_from_tensors("spec_topk", *tensors)
    requests = [task.request_id for task in load.tasks]
    load.step()
    theirs = load.sink.last
    made = restated.results_of(restated.tensors_of(step), requests, [restated.Metrics() for _ in requests])
    assert [result.request_id for result in made] == [result.request_id for result in theirs]
    for result, other in zip(made, theirs, strict=True):
        assert result.token_ids == other.outputs.token_ids
        assert result.logprob == other.outputs.logprob
        ids, scores, ranks = (list(column) for column in zip(*result.top_logprobs, strict=True))
        logprobs = other.outputs.top_logprobs
        assert (ids, scores, ranks) == (
            logprobs.logprob_token_ids,
            logprobs.logprobs,
            logprobs.sampled_token_ranks,
        )
