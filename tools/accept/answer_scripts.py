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
WHOLE_SCORES = (-1, 0, -3, -0.5)


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


CALLS = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
PARSED = (
    *({"skipped": True}, {"reasoning_content": "hm"}, {"text": None, "reasoning_content": "hm"}),
    {"text": None, "tool_calls": CALLS},
)
"""What parsers make of a result."""
REFUSED = ([[[99, 1]], [[-0.5, -1.0]], [1]], [[[]], [[]], [1]])
"""Log-probabilities of a token that the tokenizer refuses, and of none."""
ENDS = ({"error_code": 500, "error_msg": "it failed"}, {"error_msg": "Aborted"})
SPECULATION = {
    "accepted_tokens": 5,
    "rejected_tokens": 1,
    "accept_ratio": 0.5,
    "average_accept_length": 2,
    "accepted_tokens_per_head": [3, 2],
    "accept_ratio_per_head": [0],
}


def _experts(tokens: int) -> list[list[list[int]]]:
    """Experts of some tokens in two layers."""
    return [
        [[(5 * token + 3 * layer) % 9, (37 * token) % 256] for layer in range(2)] for token in range(tokens)
    ]


def _random_mask(rng: random.Random, tokens: int) -> Any:
    """The mask of one token, or of several; sometimes none."""
    rows = [[rng.choice((5, 300, 70_000)) for _ in range(rng.randint(0, 9))] for _ in range(max(tokens, 1))]
    return rng.choice((None, rows, rows, rows, rows[0] or [7]))


def _random_prompt(rng: random.Random) -> list[list[Any]]:
    """Log-probabilities of a prompt with up to five candidates a token."""
    length, width = rng.randint(1, 90), rng.randint(1, 6)  # of many a log has a remark in their place
    ids = [rng.choices(range(len(TEXTS)), k=width) for _ in range(length)]
    scores = [rng.choices((*SCORES, -math.inf), k=width) for _ in range(length)]
    return [ids, scores, rng.choices(range(1, 100), k=length)]


def as_one_value(values: Any, kind: str = "u1") -> bytes:
    """The bytes of an array, as `headers/packed_array.h` has them; `kind` as NumPy has it."""
    array = importlib.import_module("numpy").asarray(values, kind)
    head = struct.pack(f"<cBBx{array.ndim}I", kind[0].encode(), array.itemsize, array.ndim, *array.shape)
    return head + bytes(array.tobytes())


def scripts(chat: bool, count: int = 40) -> list[Script]:
    """So many random scripts for one of the two APIs."""
    return [random_script(number, chat) for number in range(count)]


def random_script(number: int, chat: bool) -> Script:
    """A random request and its results, the same for the same number; ids of both APIs end in the choice."""
    rng = random.Random(number)
    maker = _Maker("chatcmpl-trial" if chat else "cmpl-trial")
    columns, choices = rng.choice((None, 0, 1, 5, 20, 24)), rng.choice((1, 1, 2, 3))
    scores = rng.choice((SCORES, SCORES, SCORES, ODD_SCORES, WHOLE_SCORES))
    steps = rng.choice((*range(1, 11), 80))  # so many that masks are joined
    masks, experts, prompt, parsed, draft, refused, speculative, fails = (
        rng.random() < chance for chance in (0.3, 0.3, 0.3, 0.3, 0.2, 0.1, 0.2, 0.1)
    )
    for step in range(steps):
        last = step == steps - 1
        for choice in rng.sample(range(choices), choices):
            wide = None if columns is None else rng.choice((columns, columns, columns + 3, 0))
            tokens, changes = rng.randint(wide is not None, 6), {"finished": last}
            if masks:
                changes["sampling_mask"] = _random_mask(rng, tokens)
            if experts and last:
                changes[EXPERTS] = _experts(rng.randint(1, 40))
            if prompt and step == 0:
                changes[PROMPT] = _random_prompt(rng)
            if parsed and rng.random() < 0.3:
                changes |= rng.choice(PARSED)
            if draft and wide is not None:
                changes["draft_top_logprobs"] = "rows"
            if refused and wide is not None and rng.random() < 0.2:
                tokens, changes["top_logprobs"] = 1, rng.choice(REFUSED)
            if speculative and last:
                changes["speculate_metrics"] = SPECULATION
            if fails and last:
                changes |= rng.choice(ENDS)
            maker.add(tokens, wide, scores, choice, **changes)
    options: dict[str, Any] = {"n": choices} if choices > 1 else {}
    if prompt:
        options[PROMPT] = rng.choice((-1, 0, 1, 5))
    if columns is not None:
        asked = rng.choice((columns, columns, columns, -1))
        options |= {"logprobs": True, "top_logprobs": asked} if chat else {"logprobs": asked}
        options["include_draft_logprobs"] = draft
    if rng.random() < 0.4:
        options["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
    if rng.random() < 0.4:
        options["return_token_ids"] = True
    if rng.random() < 0.2:
        options["include_logprobs_decode_token"] = False
    if rng.random() < 0.2:
        options |= {"collect_metrics": True, "max_streaming_response_tokens": 3}
    return Script(f"random answer {number}", options, maker.made, choices, rng.choice((5, 8, 50)))
