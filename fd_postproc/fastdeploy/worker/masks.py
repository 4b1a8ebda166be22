"""Sampling masks in the compact frame of their step, where FastDeploy sends them separately.

FastDeploy's function that saves a step calls the save op first, and afterwards gives the masks to a socket's
client (2.5) or to the queue of a thread that has one (2.6).  Ours, in its place, calls it with a stand-in for
that: what our save op makes is held until the masks are there, and both are sent at once.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ..._core import DRAFT, _carrying, decode
from ...environment import DIALECT, IN_FRAMES
from ...errors import QueueRemoved
from ...layout import GPU, Channel
from ...ops import host
from ...ops.environment import peer_understands
from ...ops.table import OpSpec
from .. import seams
from ..logs import fastdeploy_log
from .drafts import OpFrames

MODULE = "fastdeploy.model_executor.pre_and_post_process"
NAMES = (
    *("save_output_normal", "save_output_speculate"),
    *("save_output_specualate", "post_process_specualate"),  # FastDeploy's spelling
)
PLACES = {"sampling_mask_async_queue": "put", "sampling_mask_zmq_client": "send_pyobj"}
"""Parameters that take the masks, by method."""
OUTPUT = "sampler_output"

_thread = threading.local()


def engine_takes_masks() -> bool:
    """Whether the engine's process accepts masks in frames, and frames are sent."""
    return peer_understands(IN_FRAMES) and DIALECT.value in ("auto", "compact")


class MaskedStep:
    """The parts of one step until it is sent; replaces FastDeploy's receiver of masks.

    Parameters
    ----------
    forward : callable
        FastDeploy's own way for masks.
    """

    def __init__(self, forward: Callable[[Any], Any]) -> None:
        self._forward = forward
        self._frames: list[tuple[Channel, bytes]] = []

    def hold(self, channel: Channel, frame: bytes) -> None:
        """Hold a save op's frame."""
        self._frames.append((channel, frame))

    def take(self, item: Any) -> None:
        """Send the held frame, with the masks from FastDeploy's function."""
        if not self.send(item):
            self._forward(item)

    put = send_pyobj = take

    def send(self, item: Any = None) -> bool:
        """Send the held frame; return whether the masks went with it.

        Those for which a frame has no room are not sent: the engine waits for FastDeploy's own message of
        them if a step carries none.
        """
        frames, self._frames = self._frames, []
        carried = False
        for channel, frame in frames:
            step = decode(frame, channel, mtype=2, layout=GPU)
            if item is not None and not carried and step.flag != DRAFT:
                carried = _give_masks(step, item)
            try:
                host.send_step(step)
            except QueueRemoved:  # nothing was sent; a new queue is made
                host.send_step(step)
        return carried


def _give_masks(step: Any, item: Any) -> bool:
    try:
        _carrying(step, masks_by_slot(item, step.batch), None)
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}")
        return False
    return True


def masks_by_slot(item: Any, slots: int) -> dict[int, Any]:
    """The masks by slot, grouped as in FastDeploy.

    Parameters
    ----------
    item : dict, or tuple of (list of ndarray, list of int or None)
        What FastDeploy's function gave: that already; or the masks, and how many of them each request has,
        one after the other (None: one each).
    slots : int
        The engine asks for no other.
    """
    if isinstance(item, dict):
        return {slot: mask for slot, mask in item.items() if slot < slots}
    masks, accepted = item
    if accepted is None:
        return dict(enumerate(masks[:slots]))
    found, at = {}, 0
    for slot, count in enumerate(map(int, accepted)):
        if count > 0 and slot < slots:
            found[slot] = list(masks[at : at + count])
        at += count
    return found


_told: set[str] = set()


def _tell(why: str) -> None:
    kind = why.partition(":")[0]
    if kind not in _told:
        _told.add(kind)
        fastdeploy_log().warning(
            "fd_postproc: sampling masks of a step are left to FastDeploy's own socket: %s", why
        )


class MaskedOp(OpFrames):
    """Save op whose frames carry the masks of their step."""

    def __init__(self, name: str, spec: OpSpec) -> None:
        super().__init__(name, spec)
        self._channel = spec.channel

    def __call__(self, args: tuple[Any, ...]) -> bool:
        """Hold the call's frame if masks will come for it; return whether it does."""
        step: MaskedStep | None = getattr(_thread, "step", None)
        if step is None:
            return False
        step.hold(self._channel, self.made(args, GPU))
        return True


class SaveOutput:
    """Replacement for FastDeploy's function that saves a step.

    Parameters
    ----------
    original : function
        FastDeploy's.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._signature = inspect.signature(original)
        self._place = place_of_masks(original)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        given = self._signature.bind(*arguments, **named)
        place = given.arguments.get(self._place)
        if place is None or getattr(given.arguments.get(OUTPUT), "sampling_mask", None) is None:
            return self.original(*arguments, **named)
        step = MaskedStep(getattr(place, PLACES[self._place]))
        given.arguments[self._place] = step
        _thread.step = step
        try:
            return self.original(*given.args, **given.kwargs)
        finally:
            _thread.step = None
            step.send()


def place_of_masks(function: Callable[..., Any]) -> str:
    """Name of the parameter that takes the masks; empty if there is none."""
    return next((name for name in PLACES if name in inspect.signature(function).parameters), "")


def replace_functions() -> list[str]:
    """Install our functions wherever FastDeploy's were imported; return the replaced names."""
    module = importlib.import_module(MODULE)
    replaced = []
    for name in NAMES:
        original = getattr(module, name, None)
        if not callable(original) or isinstance(original, SaveOutput):
            continue
        if not place_of_masks(original):
            continue
        ours = SaveOutput(original)
        seams.install("masks", *seams.everywhere(name, original, ours))
        replaced.append(name)
    return replaced
