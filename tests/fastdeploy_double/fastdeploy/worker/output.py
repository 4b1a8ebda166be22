"""Log-probability containers and the statistics of speculative decoding."""

from typing import Any, NamedTuple

from fastdeploy._shapes import made
from tests.restated.api.models import Logprob  # noqa: F401


class _LogprobsLists:
    """One row for each reported token; column 0 is the sampled token."""


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
