"""Sampling masks in the compact frame of their step, where FastDeploy sends them beside it.

FastDeploy's function that saves a step calls the save op first, and afterwards gives the masks to a socket's
client (2.5) or to the queue of a thread that has one (2.6).  Ours, in its place, calls it with a stand-in for
that: what our save op makes is held until the masks are there, and both are sent at once.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
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
from ..logs import fastdeploy_log
from .drafts import OpFrames

MODULE = "fastdeploy.model_executor.pre_and_post_process"
NAMES = (
    *("save_output_normal", "save_output_speculate"),
    *("save_output_specualate", "post_process_specualate"),  # FastDeploy's spelling
)
PLACES = {"sampling_mask_async_queue": "put", "sampling_mask_zmq_client": "send_pyobj"}
"""Parameters that take the masks, and by which method."""
OUTPUT = "sampler_output"

_thread = threading.local()


def engine_takes_masks() -> bool:
    """Whether the engine's process has said that it takes masks out of frames, and frames are to be sent."""
    return peer_understands(IN_FRAMES) and DIALECT.value in ("auto", "compact")


class MaskedStep:
    """What one step consists of, until it is sent; stands in the place of what FastDeploy gives masks to.

    Parameters
    ----------
    forward : callable
        FastDeploy's own way for masks.
    """

    def __init__(self, forward: Callable[[Any], Any]) -> None:
        self._forward = forward
        self._frames: list[tuple[Channel, bytes]] = []

    def hold(self, channel: Channel, frame: bytes) -> None:
        """Keep a save op's frame."""
        self._frames.append((channel, frame))

    def take(self, item: Any) -> None:
        """Send what is held, with the masks that FastDeploy's function has for it."""
        if not self.send(item):
            self._forward(item)

    put = send_pyobj = take

    def send(self, item: Any = None) -> bool:
        """Send what is held; whether the masks went with it.

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
    """Masks by slot, as FastDeploy groups them.

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
    """A save op's calls within a step that has masks."""

    def __init__(self, name: str, spec: OpSpec) -> None:
        super().__init__(name, spec)
        self._channel = spec.channel

    def __call__(self, args: tuple[Any, ...]) -> bool:
        """Hold what the op was called with, if masks will come for it; whether that was done."""
        step: MaskedStep | None = getattr(_thread, "step", None)
        if step is None:
            return False
        step.hold(self._channel, self.made(args, GPU)[1])
        return True


class SaveOutput:
    """Stands where FastDeploy's function stood that saves a step.

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
    """The parameter that takes the masks; empty: it has none."""
    return next((name for name in PLACES if name in inspect.signature(function).parameters), "")


def replace_functions() -> list[str]:
    """Put ours in the place of FastDeploy's, wherever they have been imported; names of those replaced."""
    module = importlib.import_module(MODULE)
    replaced = []
    for name in NAMES:
        original = getattr(module, name, None)
        if not callable(original) or isinstance(original, SaveOutput):
            continue
        if not place_of_masks(original):
            continue
        ours = SaveOutput(original)
        for at, one in list(sys.modules.items()):
            if at.startswith("fastdeploy.") and getattr(one, "__dict__", {}).get(name) is original:
                setattr(one, name, ours)
        replaced.append(name)
    return replaced
