"""The messages that ``fd-postproc demo`` sends: recorded ones, or synthetic steps.

Both processes of the demo build them here: the sender to send them, the receiver to know what must arrive.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass

from .. import data
from .._core import CHANNELS, LEAST_LIMIT, Step, decode, encode, has_logprobs, payload_size
from ..layout import GPU, Channel, Layout
from ..recording import Recording

KINDS = 16
"""Different steps of a synthetic load; more steps repeat them."""


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


def synthetic_step(channel: Channel, batch: int, accepted: int, columns: int, seed: int = 0) -> Step:
    """A step with every request's `accepted` tokens and plausible logprobs.

    Raises
    ------
    ValueError
        If the channel cannot carry it.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    rows = batch * accepted
    ids = random.integers(0, 150_000, (rows, columns), dtype=np.int32)
    counts = np.full(batch, accepted, np.int32)
    if not has_logprobs(channel):
        return Step.from_arrays(channel, counts, ids)
    scores = np.sort(-random.exponential(3.0, (rows, columns)).astype(np.float32), axis=1)[:, ::-1]
    ranks = random.integers(1, 6, rows, dtype=np.int32)
    return Step.from_arrays(channel, counts, ids, scores, ranks)


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
