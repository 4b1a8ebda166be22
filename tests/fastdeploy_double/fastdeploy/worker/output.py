"""Log-probability containers and the statistics of speculative decoding."""

from typing import Any, NamedTuple

from fastdeploy._shapes import made


class Logprob(NamedTuple):
    """The log-probability of one token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, Logprob] | None]
SampleLogprobs = list[dict[int, Logprob]]


class _LogprobsLists:
    """One row for each reported token; column 0 is the sampled token."""

    def slice_columns(self, start: int, end: int):
        """Columns `start` to `end` of every row; the ranks are shared."""
        ids, logprobs, ranks = self
        cut = slice(start, end)
        return type(self)([row[cut] for row in ids], [row[cut] for row in logprobs], ranks)

    def slice_rows(self, start: int, end: int):
        """Rows `start` to `end`."""
        cut = slice(start, end)
        return type(self)(*(part[cut] for part in self))


class _SpeculateMetrics:
    """Acceptance statistics of a finished request."""


class LogprobsTensors(NamedTuple):
    """The same as tensors: int64, float32, int64."""

    logprob_token_ids: Any
    logprobs: Any
    selected_token_ranks: Any

    def tolists(self):
        """As lists."""
        return LogprobsLists(*(part.tolist() for part in self))

    def slice_rows(self, start: int, end: int):
        """Rows `start` to `end`, each part a CPU tensor of its own."""
        return type(self)(*(part.cpu()[start:end].clone() for part in self))


LogprobsLists: Any = made("LogprobsLists", __name__, _LogprobsLists)
SpeculateMetrics: Any = made("SpeculateMetrics", __name__, _SpeculateMetrics)
