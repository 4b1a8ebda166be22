"""Small made-up requests and results for the trial of the API side."""

from __future__ import annotations

import copy
import importlib
import math
import random
import struct
from dataclasses import dataclass, field
from typing import Any

NOW = 1_763_740_800.5

EXPERTS = "routing_data"
"""Key of a result's routed experts."""

PROMPT = "prompt_logprobs"
"""Key of those of a result's prompt: ids, log-probabilities and ranks."""

TEXTS = (
    " the",
    "é",
    "\ufffd",
    '\n"\\/',
    "\x07\x1f\x7f",
    "",
    "日本",
    "😀",
    "a\ufffd",
    "</s>",
    "\u2028",
    " the",
)
"""Texts of the trial's tokenizer for token ids 0, 1, ...; it refuses further ids."""

SCORES = (
    *(-0.5, -1.1920928955078125e-07, -0.0, -9.999999747378752e-06, -1.4999999621068127e-05, -17.25),
    *(-3.4028234663852886e38, -1.0000000272564224e16, -12345.678710937500, -1e-45),
)
ODD_SCORES = (math.nan, -math.inf, math.inf)


@dataclass(frozen=True)
class Script:
    """A request and its results.

    Attributes
    ----------
    name : str
        For a difference's text.
    options : dict
        Of the request.
    results : list of dict
        As FastDeploy's data processor leaves them.
    choices : int
    max_tokens : int
    """

    name: str
    options: dict[str, Any]
    results: list[dict[str, Any]]
    choices: int = 1
    max_tokens: int = 50

    def groups(self) -> list[list[dict[str, Any]]]:
        """New results for each caller, one group at a time."""
        return [[copy.deepcopy(result)] for result in self.results]


@dataclass
class _Maker:
    """Builder of a script's results, with different numbers in each."""

    request_id: str
    step: int = 0
    made: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        tokens: int = 1,
        columns: int | None = None,
        scores: Any = SCORES,
        choice: int = 0,
        **changes: Any,
    ) -> _Maker:
        outputs = {
            "index": choice,
            "send_idx": self.step,
            "token_ids": [(self.step + row) % 10 for row in range(tokens)],
            "decode_type": 0,
            "logprob": None,
            "top_logprobs": self._rows(tokens, columns, scores),
            "draft_top_logprobs": None,
            "text": TEXTS[self.step % 8],
            "completion_tokens": TEXTS[self.step % 8],
            "skipped": False,
            "tool_calls": None,
            "reasoning_content": "",
            "reasoning_token_num": self.step % 3,
            "sampling_mask": None,
        }
        now = NOW + self.step / 7
        metrics = {
            "arrival_time": NOW - 3.25,
            "inference_start_time": NOW - 2,
            "engine_recv_latest_token_time": now,
            "first_token_time": 0.7517156600952148,
            "request_start_time": NOW - 3.25,
            "speculate_metrics": None,
            "preempted_count": 0,
        }
        result: dict[str, Any] = {
            "request_id": f"{self.request_id}_{choice}",
            "prompt_token_ids": [],
            "prompt_logprobs": None,
            "outputs": outputs,
            "metrics": metrics,
            "finished": False,
            "num_cached_tokens": 3,
            "num_input_image_tokens": 0,
            "num_input_video_tokens": 0,
            "error_code": 200,
            "error_msg": None,
            "trace_carrier": None,
        }
        for name, value in changes.items():
            place = next((part for part in (outputs, metrics) if name in part), result)
            place[name] = self._rows(tokens, columns, scores) if value == "rows" else value
        self.made.append(result)
        self.step += 1
        return self

    def _rows(self, tokens: int, columns: int | None, scores: Any) -> Any:
        if columns is None:
            return None
        width = columns + 1
        ids = [[(3 * self.step + 5 * row + i) % len(TEXTS) for i in range(width)] for row in range(tokens)]
        values = [
            [scores[(self.step + 2 * row + i) % len(scores)] for i in range(width)] for row in range(tokens)
        ]
        return [ids, values, [1] * tokens]


def _results(request_id: str) -> dict[str, list[dict[str, Any]]]:
    """Results by what they are about; ids of both APIs end in the choice."""

    def maker() -> _Maker:
        return _Maker(request_id)

    speculation = {
        "accepted_tokens": 5,
        "rejected_tokens": 1,
        "accept_ratio": 0.5,
        "average_accept_length": 2,
        "accepted_tokens_per_head": [3, 2],
        "accept_ratio_per_head": [0],
    }
    prompt: list[list[Any]] = [
        [[1, 2, 7], [3, 4, 0]],
        [[-0.5, -math.inf, -2.0], [-1e-07, -3.5, -4.25]],
        [4, 1],
    ]
    prompt = [35 * part for part in prompt]  # so many that a log has a remark in their place
    masks = maker()
    for step in range(70):  # so many that they are joined
        masks.add(1, sampling_mask=[*range(step % 9 + 1)])
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return {
        "plain": maker().add().add(2).add(1, finished=True).made,
        "empty": maker().add().add(0).add(1, finished=True).made,
        "rows": maker().add(1, 4).add(3, 4).add(2, 0).add(2, 2, finished=True).made,
        "odd": maker().add(2, 3, ODD_SCORES).add(1, 1, ODD_SCORES, finished=True).made,
        "integers": maker().add(1, 2, (-1, 0)).add(1, 2, (-3, -0.5), finished=True).made,
        "refused": maker().add(1, 2).add(1, 1, top_logprobs=[[[99, 1]], [[-0.5, -1.0]], [1]])
        .add(1, 1, top_logprobs=[[[]], [[]], [1]]).add(1, 1, finished=True).made,
        "draft": maker().add(2, 2, draft_top_logprobs="rows").add(1, 2, finished=True).made,
        "prompt": maker().add(1, 1, prompt_logprobs=prompt).add(1, 1, finished=True).made,
        "skipped": maker().add(1, 1, skipped=True).add(1, 1, reasoning_content="hm", skipped=False)
        .add(1, 1, text=None, tool_calls=calls).add(1, 1, finished=True).made,
        "reasoning": maker().add().add().add().add(1, text=None, reasoning_content="hm").add().add()
        .add(1, text=None, reasoning_content="hm").add(1, finished=True).made,
        "choices": maker().add(1, 2).add(2, 2, choice=1).add(1, 2, finished=True)
        .add(1, 2, choice=1, finished=True).made,
        "masks": masks.add(1, 1, sampling_mask=[1, 2]).add(2, 1, sampling_mask=[[1], [2, 3]])
        .add(1, 1, speculate_metrics=speculation, finished=True).made,
        "experts": maker().add(1, 1).add(1, 1, choice=1, finished=True, routing_data=_experts(7))
        .add(1, 1, finished=True, routing_data=_experts(11)).made,
        "error": maker().add(1, 1).add(1, 1, error_code=500, error_msg="it failed", finished=True).made,
        "aborted": maker().add(1, 1).add(1, error_msg="Aborted", finished=True).made,
    }  # fmt: skip


def _experts(tokens: int) -> list[list[list[int]]]:
    """Experts of some tokens in two layers."""
    return [
        [[(5 * token + 3 * layer) % 9, (37 * token) % 256] for layer in range(2)] for token in range(tokens)
    ]


def _random_mask(rng: random.Random, tokens: int) -> Any:
    """The mask of one token, or of several; sometimes none."""
    rows = [[rng.choice((5, 300, 70_000)) for _ in range(rng.randint(0, 9))] for _ in range(tokens)]
    return rng.choice((None, rows, rows, rows, rows[0] or [7]))


def _random_prompt(rng: random.Random) -> list[list[Any]]:
    """Log-probabilities of a prompt with up to five candidates a token."""
    length, width = rng.randint(1, 40), rng.randint(1, 6)
    ids = [rng.choices(range(len(TEXTS)), k=width) for _ in range(length)]
    scores = [rng.choices((*SCORES, -math.inf), k=width) for _ in range(length)]
    return [ids, scores, rng.choices(range(1, 100), k=length)]


def as_one_value(values: Any, kind: str = "u1") -> bytes:
    """The bytes of an array, as `headers/packed_array.h` has them; `kind` as NumPy has it."""
    array = importlib.import_module("numpy").asarray(values, kind)
    head = struct.pack(f"<cBBx{array.ndim}I", kind[0].encode(), array.itemsize, array.ndim, *array.shape)
    return head + bytes(array.tobytes())


def scripts(chat: bool) -> list[Script]:
    """All scripts for one of the two APIs."""
    results = _results("chatcmpl-trial" if chat else "cmpl-trial")

    def asked(columns: int | None, **more: Any) -> dict[str, Any]:
        if columns is None:
            return more
        return {**({"logprobs": True, "top_logprobs": columns} if chat else {"logprobs": columns}), **more}

    usage = {"include_usage": True, "continuous_usage_stats": True}
    return [
        Script("no log-probabilities", asked(None), results["plain"]),
        Script("no tokens", asked(None), results["empty"]),
        Script("usage", asked(None, stream_options=usage, return_token_ids=True), results["plain"]),
        Script("metrics", asked(0, collect_metrics=True, max_streaming_response_tokens=3), results["rows"]),
        Script("no alternatives", asked(0), results["rows"]),
        Script("alternatives", asked(3), results["rows"], max_tokens=8),
        Script("all alternatives", asked(-1, stream_options=usage), results["rows"]),
        Script("without texts", asked(2, include_logprobs_decode_token=False), results["rows"]),
        Script("floats that are not finite", asked(2), results["odd"]),
        Script("integers for floats", asked(2), results["integers"]),
        Script("token ids that are refused", asked(2), results["refused"]),
        Script("draft", asked(2, include_draft_logprobs=True), results["draft"]),
        Script("prompt", asked(1, prompt_logprobs=2, return_token_ids=True), results["prompt"]),
        Script("skipped and called tools", asked(1), results["skipped"]),
        Script("skipped, with ids", asked(1, return_token_ids=True), results["skipped"]),
        Script("no text but reasoning", asked(None), results["reasoning"]),
        Script("two choices", asked(2, n=2), results["choices"], 2),
        Script("masks and speculation", asked(1), results["masks"]),
        Script("routed experts", asked(1, n=2), results["experts"], 2),
        Script("an error", asked(1), results["error"]),
        Script("aborted", asked(1), results["aborted"]),
    ]


def random_script(number: int, chat: bool) -> Script:
    """A random request and its results, the same for the same number."""
    rng = random.Random(number)
    maker = _Maker("chatcmpl-trial" if chat else "cmpl-trial")
    columns, choices = rng.choice((None, 0, 1, 5, 20, 24)), rng.choice((1, 1, 2, 3))
    steps = rng.choice((*range(1, 11), 80))  # so many that masks are joined
    masks, experts, prompt = rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.3
    for step in range(steps):
        for choice in rng.sample(range(choices), choices):
            wide = None if columns is None else rng.choice((columns, columns, columns + 3, 0))
            tokens, changes = rng.randint(1, 6), {"finished": step == steps - 1}
            if masks:
                changes["sampling_mask"] = _random_mask(rng, tokens)
            if experts and step == steps - 1:
                changes[EXPERTS] = _experts(rng.randint(1, 40))
            if prompt and step == 0:
                changes[PROMPT] = _random_prompt(rng)
            maker.add(tokens, wide, choice=choice, **changes)
    options: dict[str, Any] = {"n": choices} if choices > 1 else {}
    if prompt:
        options[PROMPT] = rng.choice((-1, 0, 1, 5))
    if columns is not None:
        options |= {"logprobs": True, "top_logprobs": columns} if chat else {"logprobs": columns}
    if rng.random() < 0.4:
        options["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
    if rng.random() < 0.4:
        options["return_token_ids"] = True
    if rng.random() < 0.2:
        options["include_logprobs_decode_token"] = False
    return Script(f"random answer {number}", options, maker.made, choices, rng.choice((5, 50)))
