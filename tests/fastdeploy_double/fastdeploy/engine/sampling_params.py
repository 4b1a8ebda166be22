"""Sampling parameters; the token processor only looks attributes up in them."""

from dataclasses import dataclass


@dataclass
class SamplingParams:
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
