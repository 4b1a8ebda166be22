"""What a client reads of an answer: the same numbers from both of its forms."""

import base64
import json

import numpy as np
import pytest

from fd_postproc import client


def sent(array):
    array = np.asarray(array)
    return {
        "dtype": array.dtype.name,
        "shape": [*array.shape],
        "data": base64.b64encode(array.tobytes()).decode(),
    }


EXPERTS = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
DEFAULT = {
    "id": "chatcmpl-1",
    "usage": {"total_tokens": 3},
    "routed_experts": base64.b64encode(EXPERTS.astype("<i8").tobytes()).decode(),
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"content": "a b", "completion_token_ids": [5, 6], "prompt_token_ids": [1, 2, 3]},
            "logprobs": {
                "content": [
                    {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "c", "logprob": -1.5}]},
                    {"token": "b", "logprob": -0.25, "top_logprobs": []},
                ]
            },
            "prompt_logprobs": [
                None,
                {"2": {"logprob": -9999.0, "rank": 7}, "4": {"logprob": -2.0, "rank": 1}},
                {"3": {"logprob": -1.0, "rank": 1}},
            ],
            "sampling_mask": [[5, 9], []],
        }
    ],
}
COMPACT = {
    "id": "chatcmpl-1",
    "usage": {"total_tokens": 3},
    "routed_experts": sent(EXPERTS),
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {
                "content": "a b",
                "completion_token_ids": sent(np.array([5, 6], np.int32)),
                "prompt_token_ids": sent(np.array([1, 2, 3], np.int32)),
            },
            "logprobs": {
                "token_ids": sent(np.array([[5, 8], [6, -1]], np.int32)),
                "logprobs": sent(np.array([[-0.5, -1.5], [-0.25, np.nan]], np.float32)),
            },
            "prompt_logprobs": {
                "token_ids": sent(np.array([[2, 4], [3, -1]])),
                "logprobs": sent(np.array([[-9999.0, -2.0], [-1.0, np.nan]], np.float32)),
                "ranks": sent(np.array([7, 1])),
            },
            "sampling_mask": {
                "offsets": sent(np.array([0, 2, 2])),
                "token_ids": sent(np.array([5, 9], np.int32)),
            },
        }
    ],
}


@pytest.mark.parametrize("told", [DEFAULT, COMPACT], ids=["default", "compact"])
@pytest.mark.parametrize("form", [json.dumps, lambda told: json.dumps(told).encode(), dict])
def test_both_forms_say_the_same(told, form):
    answer = client.read_answer(form(told), experts_of_a_token=(3, 2))
    assert (answer.id, answer.usage) == ("chatcmpl-1", {"total_tokens": 3})
    assert (answer.routed_experts == EXPERTS).all()
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "a b", "stop")
    assert choice.token_ids.tolist() == [5, 6]
    assert choice.prompt_token_ids.tolist() == [1, 2, 3]
    assert np.array_equal(choice.logprobs.logprobs, [[-0.5, -1.5], [-0.25, np.nan]], equal_nan=True)
    if told is COMPACT:
        assert choice.logprobs.token_ids.tolist() == [[5, 8], [6, -1]]
        assert answer.routed_experts.dtype == np.uint8
    assert choice.prompt_logprobs.token_ids.tolist() == [[2, 4], [3, -1]]
    assert np.array_equal(choice.prompt_logprobs.logprobs, [[-9999.0, -2.0], [-1.0, np.nan]], equal_nan=True)
    assert choice.prompt_logprobs.ranks.tolist() == [7, 1]
    assert [one.tolist() for one in choice.sampling_mask] == [[5, 9], []]
    assert len(choice.sampling_mask) == 2
    assert choice.draft_logprobs is None


def test_a_completion_is_read():
    told = {
        "choices": [
            {
                "index": 0,
                "text": "a b",
                "token_ids": [5, 6],
                "logprobs": {
                    "tokens": ["a", "b"],
                    "token_logprobs": [-0.5, -0.25],
                    "top_logprobs": [{"a": -0.5, "c": -1.5}, {"b": -0.25}],
                },
            }
        ]
    }
    (choice,) = client.read_answer(told).choices
    assert choice.text == "a b"
    assert choice.token_ids.tolist() == [5, 6]
    assert np.array_equal(choice.logprobs.logprobs, [[-0.5, -1.5], [-0.25, np.nan]], equal_nan=True)
    assert client.read_answer(
        {"choices": [], "routed_experts": DEFAULT["routed_experts"]}
    ).routed_experts.shape == (24,)


@pytest.mark.parametrize("told", [{"error": {"message": "no"}}, [], "x"])
def test_what_is_no_answer_is_refused(told):
    with pytest.raises(ValueError, match="is no answer"):
        client.read_answer(json.dumps(told))


def test_an_array_that_does_not_add_up_is_refused():
    right = sent(np.arange(6, dtype=np.int16))
    assert client.array_of(right | {"shape": [2, 3]}).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="does not fit 6 numbers"):
        client.array_of(right | {"shape": [7]})
    with pytest.raises(ValueError, match="no type of numbers"):
        client.array_of(right | {"dtype": "O"})


def test_a_mask_beyond_the_last_one_is_refused():
    masks = client.read_answer(COMPACT).choices[0].sampling_mask
    with pytest.raises(IndexError, match="from 0 to 1"):
        masks[2]
