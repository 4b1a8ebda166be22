"""Log-probabilities of prompts in streams."""

import numpy as np
import pytest

from fd_postproc.fastdeploy.api.activation import CHAT
from tests.lib.rows import each

from .laned import APIS, asked, prompted, the_same


@each("api", APIS)
@each("columns", [2, -1])
@each(
    "more",
    [
        {},
        {"return_token_ids": True},
        {"include_logprobs_decode_token": False},
        {"max_streaming_response_tokens": 3},
        {"echo": True},
    ],
)
@each("choices", [1, 3])
def test_a_prompts_log_probabilities_are_put_into_its_chunk(
    api, columns, more, choices, laned, spelling, built
):
    if api == CHAT and "echo" in more:
        return
    scores = [[[5, 6, 7]], [[-1.0, -2.0, -3.0]], [1]]
    for options, rows in (({}, None), (asked(api), scores)):
        built.clear()
        chunks, *_ = the_same(
            api,
            spelling,
            lambda rows=rows: prompted(api, choices, top_logprobs=rows),
            prompt_logprobs=columns,
            n=choices,
            **options,
            **more,
        )
        of_prompts = [one for one in chunks if '"prompt_logprobs":[null,{"1":{' in one]
        assert len(of_prompts) == choices
        assert sum(built) == 6 * choices  # theirs
        assert ("max_streaming_response_tokens" in more) or laned


@pytest.mark.parametrize("api", APIS)
def test_a_prompt_whose_first_result_is_held_back(api, laned, spelling):
    """In completions it is lost, and it is not another choice's."""

    class Holding(spelling):
        def process_response_dict(self, response_dict, **options):
            made, outputs = super().process_response_dict(response_dict, **options), response_dict["outputs"]
            outputs["skipped"] |= outputs["send_idx"] == outputs["index"] == 0
            return made

    Holding.__module__ = spelling.__module__
    chunks, *_ = the_same(api, Holding, lambda: prompted(api, 2), n=2, prompt_logprobs=1)
    assert sum('"prompt_logprobs":[null,{"1"' in one for one in chunks) == (2 if api == CHAT else 1)


@each("api", APIS)
@each("prompt", [[[[1]], [[-0.5]], [1]], ([[77]], [[-0.5]], [1]), ([[]], [[]], [1])])
@pytest.mark.falls_back
def test_a_prompts_log_probabilities_that_ours_does_not_know_are_fastdeploys(
    api, prompt, laned, spelling, built
):
    built.clear()
    the_same(api, spelling, lambda: prompted(api, prompt=prompt), prompt_logprobs=2)
    assert built[0] == built[1] == np.size(prompt[0])
