"""FastDeploy's Python code for a step, restated over NumPy as the baseline of ``demo``.

A lower bound of FastDeploy's own time: its tensors are Paddle's, whose elements take longer to read, and its
loop also writes traces and metrics, looks settings up, and ends requests.  ``tests/restated`` has all of it;
a test holds this file to that one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .._core import Step
from ..core.layout import GPU

_SLOTS, _DRAFTS, _WIDTH = GPU.max_batch, GPU.max_draft, GPU.top_k + 1
_HEADER = 3  # stop flag, flag and columns, batch


class Tensors(NamedTuple):
    """A step of ``spec_topk`` as FastDeploy's get op returns it, with all slots."""

    tokens: np.ndarray  # int64, [3 + 512 + 512 * 6 * 21]: header, counts, ids
    scores: np.ndarray  # float32, [512 * 6 * 21]
    ranks: np.ndarray  # int64, [512 * 6]


@dataclass
class Metrics:
    """A request's time stamps, as many as FastDeploy copies for each result."""

    arrival_time: float = 0.0
    preprocess_start_time: float = 0.0
    preprocess_end_time: float = 0.0
    scheduler_recv_req_time: float = 0.0
    engine_get_req_time: float = 0.0
    inference_start_time: float = 0.0
    engine_recv_first_token_time: float = 0.0
    engine_recv_latest_token_time: float = 0.0


@dataclass
class Result:
    """Result of one request in a step."""

    request_id: str
    index: int
    metrics: Metrics
    token_ids: list[int] = field(default_factory=list)
    logprob: float | None = None
    top_logprobs: list[tuple[list[int], list[float], int]] = field(default_factory=list)


def tensors_of(step: Step) -> Tensors:
    """The tensors of a step of ``spec_topk``."""
    tokens = np.zeros(_HEADER + _SLOTS + _SLOTS * _DRAFTS * _WIDTH, np.int64)
    scores = np.zeros((_SLOTS, _DRAFTS, _WIDTH), np.float32)
    ranks = np.zeros((_SLOTS, _DRAFTS), np.int64)
    tokens[:_HEADER] = step.stop_flag, step.flag | step.cols << 8, step.batch
    tokens[_HEADER : _HEADER + step.batch] = step.counts
    ids = tokens[_HEADER + _SLOTS :].reshape(_SLOTS, _DRAFTS, _WIDTH)
    for slot, count in enumerate(step.counts):
        if count > 0:
            rows = step.logprobs(slot).tolists()
            ids[slot, :count, : step.cols], scores[slot, :count, : step.cols], ranks[slot, :count] = rows
    return Tensors(tokens, scores.reshape(-1), ranks.reshape(-1))


def results_of(tensors: Tensors, requests: list[str], metrics: list[Metrics]) -> list[Result]:
    """Make a result for each request with tokens; `requests` (their ids) and `metrics` are by slot."""
    tokens = tensors.tokens
    batch, columns = int(tokens[2]), int(tokens[1]) >> 8
    counts = tokens[_HEADER : _HEADER + batch]
    ids = tokens[_HEADER + _SLOTS :].reshape(_SLOTS, _DRAFTS, _WIDTH)[:batch, :, :columns].tolist()
    # Lists for all draft positions, whatever was accepted: as FastDeploy.
    scores = tensors.scores.reshape(_SLOTS, _DRAFTS, _WIDTH)[:batch, :, :columns].tolist()
    ranks = tensors.ranks.reshape(_SLOTS, _DRAFTS)[:batch].tolist()
    results = []
    for slot in range(batch):
        count = int(counts[slot])
        if count <= 0:
            continue
        result = Result(requests[slot], slot, copy.copy(metrics[slot]))
        for row in range(count):
            result.token_ids.append(ids[slot][row][0])
            result.logprob = scores[slot][row][0]
            result.top_logprobs.append((ids[slot][row], scores[slot][row], ranks[slot][row]))
        _ = f"result of the step: {result}"  # for a debug line that is off: as FastDeploy
        results.append(result)
    return results
