"""Overlapping steps: a step's logprobs are complete when its post-processing has been queued.

With overlap scheduling FastDeploy saves a step after it has queued the next forward pass, so that the kernel
of the save op would wait for that.  The sampler's logprobs are tensors of their own, which nothing writes any
more; so they are marked (`fd_postproc.ops.ready`) when ``GPUModelRunner._postprocess`` returns, and saved on
a stream that waits for that point only.  A tensor that is made later, by renormalising or reordering, is
another one and not marked: its save waits as before.

Off unless ``FD_POSTPROC_CUDA_SIDE_STREAM`` is set: no GPU has run it yet.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from ... import ops
from ...environment import SIDE_STREAM, is_on

_RUNNER = "fastdeploy.worker.gpu_model_runner"
_LOGPROBS = ("logprob_token_ids", "logprobs", "selected_token_ranks")


def begin() -> None:
    """Mark from now on, if it is wanted and this FastDeploy has what it takes."""
    runner = getattr(sys.modules.get(_RUNNER), "GPUModelRunner", None)
    original = getattr(runner, "_postprocess", None)
    if original is None or hasattr(original, "fd_postproc_original") or not is_on(SIDE_STREAM):
        return

    @functools.wraps(original)
    def postprocess(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            ops.ready(*_complete(result))
        except Exception:
            end()
            logging.getLogger("fd_postproc").exception("steps are saved on the current stream again")
        return result

    postprocess.fd_postproc_original = original  # type: ignore[attr-defined]
    runner._postprocess = postprocess  # type: ignore[union-attr]


def end() -> None:
    """Undo `begin`."""
    runner = getattr(sys.modules.get(_RUNNER), "GPUModelRunner", None)
    original = getattr(getattr(runner, "_postprocess", None), "fd_postproc_original", None)
    if original is not None:
        runner._postprocess = original  # type: ignore[union-attr]


def _complete(result: Any) -> list[Any]:
    """The tensors of the sampler among what ``_postprocess`` returns."""
    found = []
    for output in result if isinstance(result, tuple) else ():
        logprobs = getattr(output, "logprobs_tensors", None)
        if logprobs is not None:
            found += [getattr(logprobs, name, None) for name in _LOGPROBS]
            found.append(getattr(output, "cu_batch_token_offset", None))
    return [tensor for tensor in found if tensor is not None]
