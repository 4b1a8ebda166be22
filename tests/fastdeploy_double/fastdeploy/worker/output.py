"""Log-probability containers and the statistics of speculative decoding."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Logprob(NamedTuple):
    """The log-probability of one token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, Logprob] | None]
SampleLogprobs = list[dict[int, Logprob]]


class LogprobsLists(NamedTuple):
    """One row for each reported token; column 0 is the sampled token."""

    logprob_token_ids: list[list[int]]
    logprobs: list[list[float]]
    sampled_token_ranks: list[int]

    def slice_columns(self, start: int, end: int):
        """Columns `start` to `end` of every row; the ranks are shared."""
        ids, logprobs, ranks = self
        cut = slice(start, end)
        return LogprobsLists([row[cut] for row in ids], [row[cut] for row in logprobs], ranks)

    def slice_rows(self, start: int, end: int):
        """Rows `start` to `end`."""
        cut = slice(start, end)
        return LogprobsLists(*(part[cut] for part in self))


@dataclass
class SpeculateMetrics:
    """Acceptance statistics of a finished request."""

    accepted_tokens: int
    rejected_tokens: int
    accept_ratio: float
    average_accept_length: float
    accepted_tokens_per_head: list[int]
    accept_ratio_per_head: list[float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
