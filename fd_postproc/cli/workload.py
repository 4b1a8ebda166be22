"""Messages for the commands: recorded ones, and synthetic steps.

Both processes of ``fd-postproc demo`` read the recorded ones: to send them, and to know what must arrive.
"""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .. import data
from .._core import CHANNELS, LEAST_LIMIT, Step, decode, encode, has_counts, has_logprobs, payload_size
from ..layout import GPU, Channel, Layout
from ..recording import Recording

if TYPE_CHECKING:
    import numpy as np

    from ..needed_limits import Load

DIFFERENT_STEPS = 16
"""Number of different steps in a synthetic load; more steps repeat them."""

IDS = (0, 149_999)
"""First and last token id of a synthetic load."""


@dataclass(frozen=True)
class Item:
    """One message to send.

    Attributes
    ----------
    name : str
        Channel and place in its recording.
    step : Step
        What must arrive; decoded from the message as FastDeploy sent it.
    payload : bytes
        The message, truncated after its last live slot.
    recorded_size : int
        Bytes that FastDeploy sent for it.
    """

    name: str
    step: Step
    payload: bytes
    recorded_size: int


def cut(step: Step, layout: Layout = GPU) -> bytes:
    """Cut a step to its shortest stock message, in the dialect in which it arrived."""
    return encode(step, step.dialect or "packed", layout=layout)


def recorded_items() -> Iterator[Item]:
    """The messages shipped with the package, channel by channel."""
    for channel in CHANNELS:
        file = importlib.resources.files(data).joinpath(f"{channel}.fdrec")
        if not file.is_file():  # a new channel, of which nothing has been recorded yet
            continue
        with Recording(file.open("rb")) as recording:
            for message in recording:
                step = decode(message.payload, channel, mtype=message.mtype, layout=recording.layout)
                yield Item(f"{channel} {message.index}", step, cut(step), len(message.payload))


def misfit(channel: Channel, load: Load) -> str | None:
    """Reason why a channel cannot carry a load of these columns and tokens; None if it can."""
    if not has_logprobs(channel) and load.columns != 1:
        return f"channel {channel} carries no logprobs: COLUMNS must be 1, not {load.columns}"
    if not has_counts(channel) and load.accepted != 1:
        return f"channel {channel} carries one token a request: ACCEPTED must be 1, not {load.accepted}"
    return None


def synthetic_step(
    channel: Channel, batch: int, accepted: int, columns: int, seed: int = 0, ids: tuple[int, int] = IDS
) -> Step:
    """A step with `accepted` tokens of every request, from `ids`, and plausible logprobs.

    Raises
    ------
    ValueError
        If the channel cannot carry it.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    rows = batch * accepted
    tokens = random.integers(*ids, (rows, columns), dtype=np.int32, endpoint=True)
    counts = np.full(batch, accepted, np.int32)
    if not has_logprobs(channel):
        return Step.from_arrays(channel, counts, tokens)
    return Step.from_arrays(channel, counts, tokens, *plausible_logprobs(random, tokens))


def plausible_logprobs(random: np.random.Generator, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and ranks as a sampler's, for given tokens.

    Column 0 is the sampled token; the likeliest tokens follow, the best first.  A sampled token that is among
    them is put there, too.

    Parameters
    ----------
    random : numpy.random.Generator
    ids : int32, [rows, columns]
        Changed where a sampled token is one of the likeliest.

    Returns
    -------
    scores : float32, [rows, columns]
    ranks : int32, [rows]
    """
    import numpy as np

    rows, columns = ids.shape
    best = max(columns - 1, 1)
    fall = random.exponential(2.0, (rows, best))
    fall[:, 0] /= 8
    likeliest = -np.cumsum(fall, axis=1)
    likeliest -= np.log(np.exp(likeliest).sum(axis=1, keepdims=True)).clip(0)
    row = np.arange(rows)
    ranks = np.asarray(random.geometric(0.8, rows))
    score = np.where(ranks <= best, likeliest[row, np.minimum(ranks, best) - 1], likeliest[:, -1] - ranks)
    among = ranks < columns
    ids[row[among], ranks[among]] = ids[among, 0]
    scores = np.column_stack([score, likeliest[:, : columns - 1]])
    return scores.astype(np.float32), ranks.astype(np.int32)


def synthetic_steps(channel: Channel, load: Load, seed: int, ids: tuple[int, int] = IDS) -> Iterator[Step]:
    """Iterate over `DIFFERENT_STEPS` different steps endlessly."""
    kinds = (
        synthetic_step(channel, **asdict(load), seed=DIFFERENT_STEPS * seed + kind, ids=ids)
        for kind in range(DIFFERENT_STEPS)
    )
    return itertools.cycle(kinds)


def ending_step(channel: Channel, batch: int, token: int) -> Step:
    """A step in which every request gets one token, the one that ends it."""
    import numpy as np

    logprobs = ([[0.0]] * batch, [1] * batch) if has_logprobs(channel) else ()
    return Step.from_arrays(channel, [1] * batch, np.full((batch, 1), token), *logprobs)


def pieces(step: Step, limit: int, layout: Layout = GPU) -> int:
    """Split a step into messages of at most `limit` bytes, as a compact frame."""
    from ..needed_limits import fragments

    limit = min(limit, payload_size(step.channel, layout))
    needed = fragments(len(encode(step, "compact", layout=layout)), limit)
    if needed is None:
        raise ValueError(f"one message may hold {limit} bytes; a compact frame needs at least {LEAST_LIMIT}")
    return needed
