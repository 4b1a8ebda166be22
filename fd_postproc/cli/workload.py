"""The messages that ``fd-postproc demo`` sends: recorded ones, or synthetic steps.

Both processes of the demo build them here: the sender to send them, the receiver to know what must arrive.
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
    from ..needs import Load

KINDS = 16
"""Different steps of a synthetic load; more steps repeat them."""

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
    """A step's shortest stock message, in the dialect in which it arrived."""
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
    """Why a channel carries no such load; None if it does, as far as columns and tokens go."""
    if not has_logprobs(channel) and load.columns != 1:
        return f"channel {channel} carries no logprobs: COLUMNS must be 1, not {load.columns}"
    if not has_counts(channel) and load.accepted != 1:
        return f"channel {channel} carries one token a request: ACCEPTED must be 1, not {load.accepted}"
    return None


def synthetic_step(
    channel: Channel, batch: int, accepted: int, columns: int, seed: int = 0, ids: tuple[int, int] = IDS
) -> Step:
    """A step with every request's `accepted` tokens, from the first to the last of `ids`, and plausible
    logprobs.

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
    scores = np.sort(-random.exponential(3.0, (rows, columns)).astype(np.float32), axis=1)[:, ::-1]
    ranks = random.integers(1, 6, rows, dtype=np.int32)
    return Step.from_arrays(channel, counts, tokens, scores, ranks)


def synthetic_steps(channel: Channel, load: Load, seed: int, ids: tuple[int, int] = IDS) -> Iterator[Step]:
    """`KINDS` different steps, again and again."""
    kinds = (
        synthetic_step(channel, **asdict(load), seed=KINDS * seed + kind, ids=ids) for kind in range(KINDS)
    )
    return itertools.cycle(kinds)


def ending_step(channel: Channel, batch: int, token: int) -> Step:
    """A step in which every request gets one token, the one that ends it."""
    import numpy as np

    logprobs = ([[0.0]] * batch, [1] * batch) if has_logprobs(channel) else ()
    return Step.from_arrays(channel, [1] * batch, np.full((batch, 1), token), *logprobs)


def synthetic_items(channel: Channel, batch: int, accepted: int, columns: int, steps: int) -> list[Item]:
    """`KINDS` different steps, or fewer."""
    items = []
    for seed in range(min(steps, KINDS)):
        step = synthetic_step(channel, batch, accepted, columns, seed)
        payload = encode(step)
        items.append(Item(f"{channel} synthetic {seed}", step, payload, len(payload)))
    return items


def pieces(step: Step, limit: int, layout: Layout = GPU) -> int:
    """Messages of at most `limit` bytes that carry a step as a compact frame."""
    from ..needs import fragments

    limit = min(limit, payload_size(step.channel, layout))
    needed = fragments(len(encode(step, "compact", layout=layout)), limit)
    if needed is None:
        raise ValueError(f"one message may hold {limit} bytes; a compact frame needs at least {LEAST_LIMIT}")
    return needed
