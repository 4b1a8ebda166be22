"""The worker's side of FastDeploy's ZeroMQ transport: a step is one frame."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from math import prod
from typing import Any

from ..._core import Sampled
from ...core.tensors import array_of, on_host
from ...ops.environment import peer_understands
from ...support.environment import STREAMS
from ..events.gauges import export_active
from ..events.guard import Guard
from ..events.log import fastdeploy_log
from ..gate import replacements
from ..stream_frames import Content, packed
from .split_frames import FramePiece, Runner, cut

NAME = "_build_stream_transfer_data"


def engine_reads_frames() -> bool:
    """Whether the engine's process reads frames."""
    return peer_understands(STREAMS)


def content_of(
    output_tokens: Any,
    pooler_outputs: Any = None,
    logprobs: Any = None,
    prompt_logprobs_list: Any = None,
    sampling_mask: Any = None,
) -> Content:
    """The content, without a number, that FastDeploy's builder turns into objects.

    The tokens are those of each slot, or codes; without any, the pooler's outputs are used.

    Raises
    ------
    ValueError, TypeError, AttributeError
        If a frame has no room for it; FastDeploy's builder has.
    """
    if output_tokens is None:
        outputs = list(pooler_outputs or ())
        pooled = {slot: _pooled(output) for slot, output in enumerate(outputs) if output is not None}
        return Content(len(outputs), pooled=pooled)
    slots = prod(output_tokens.shape)
    prompts = {}
    for slot, rows in enumerate(prompt_logprobs_list or ()):
        if rows is not None and slot < slots:
            parts = (on_host(part, "a prompt's log-probabilities") for part in _tensors(rows))
            prompts[slot] = tuple(map(array_of, parts))
    masks = None if sampling_mask is None else list(sampling_mask)[:slots]
    rows = tuple(on_host(part, "log-probabilities") for part in _tensors(logprobs)) if logprobs else None
    tokens = on_host(output_tokens, "tokens")
    return Content(slots, tokens, rows, masks, prompts)


def numbered(content: Content) -> Content:
    """Number the content of the next frame."""
    sender, number = numbering.next()
    return content._replace(sender=sender, number=number)


def _tensors(rows: Any) -> tuple[Any, Any, Any]:
    return rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks


class Numbering:
    """Sequence of this process's frames."""

    def __init__(self) -> None:
        self._pid, self._sender, self._numbers = 0, 0, count()

    def next(self) -> tuple[int, int]:
        """The sender's id, and the number of the next frame."""
        if self._pid != os.getpid():  # at first, and in a child of the process
            self._pid, self._numbers = os.getpid(), count()
            self._sender = int.from_bytes(os.urandom(8), "little")
        return self._sender, next(self._numbers)


numbering = Numbering()


def _pooled(output: Any) -> Any:
    if "bfloat16" in str(output.dtype):
        output = output.astype("float32")
    return array_of(on_host(output, "a pooled output"))


_NO_ROOM = (ValueError, TypeError, AttributeError)
"""What `content_of` raises for a step that a frame has no room for."""


class StreamBuilder:
    """Replacement for FastDeploy's builder; unsupported steps fall back to it, with one log line.

    FastDeploy's thread sends what this returns as it sends the objects; the engine side takes both.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original
        self.__name__, self.__doc__ = NAME, original.__doc__
        self._left: set[str] = set()
        self._active = False
        self._runner: Runner | None = None  # since the first step in pieces
        self._queued = 0  # pieces of the step in hand that are on their way
        self._guard = Guard("streams")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._queued = 0
        frame = None
        try:
            if self._guard.is_on and engine_reads_frames():
                frame = self._built(content_of(*arguments, **named))
        except Exception as error:
            if self._queued:
                raise  # FastDeploy's objects would repeat what was sent
            self._leave(error)
        if frame is None:
            return self.original(*arguments, **named)
        self._guard.worked()
        if not self._active:
            self._active = True
            try:
                export_active("worker", True)
                fastdeploy_log().info("fd_postproc: worker side active: steps are sent over ZeroMQ as frames")
            except Exception as error:
                self._guard.failed(error)
        return frame

    def _built(self, content: Content) -> Any:
        """Build the frame of a step, or the last one of its pieces; the others are queued."""
        parts = cut(content)
        if len(parts) == 1:
            frame = packed(numbered(content))
            return frame if self._runner is None else FramePiece(frame, self._runner)
        if self._runner is None:
            try:
                self._runner = Runner.found()
            except RuntimeError:  # no FastDeploy thread would send the pieces: one whole frame
                return packed(numbered(content))
        # That a piece can be packed has to be known before the first is sent.
        Sampled(content.tokens, content.rows, content.slots, 0, 0, ())
        *others, last = [FramePiece(numbered(part), self._runner) for part in parts]
        for piece in others:
            self._runner.queue.put(piece)
            self._queued += 1
        return last

    def _leave(self, error: Exception) -> None:
        if not isinstance(error, _NO_ROOM):
            self._guard.failed(error)
            return
        why = f"{type(error).__name__}: {error}"
        if why not in self._left and len(self._left) < 16:
            self._left.add(why)
            fastdeploy_log().warning("fd_postproc: a step is left to FastDeploy's own objects: %s", why)


def install(module: Any) -> None:
    """Install our builder in FastDeploy's module and importers, once."""
    original = getattr(module, NAME)
    if not isinstance(original, StreamBuilder):
        ours = StreamBuilder(original)
        replacements.install("streams", *replacements.everywhere((NAME, original, ours)))
