"""Bytes of one message -> Step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fd_postproc._core import decode
from fd_postproc.layout import GPU

from .built import _floor
from .cases import HEADLINE, Case, Comparison, Ready, check, matrix, rounds_for, step_bytes, timed

ABOUT = "decode() of a full-size packed message"
REFERENCE = "floor"

_QUICK = (
    HEADLINE[0],
    HEADLINE[-1],
    Case(batch=1),
    Case(batch=32),
    Case(batch=512),
    Case(accepted=6),
    Case("topk", accepted=1),
    Case("spec", columns=1),
    Case("plain", accepted=1, columns=1),
)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in _QUICK if quick else matrix():
        contenders = {"fd_postproc": partial(_ours, case), "floor": partial(_rows, case)}
        if case in HEADLINE:
            contenders["numpy"] = partial(_numpy, case)
        yield Comparison(str(case), contenders, rounds=rounds_for(case))


def _ours(case: Case) -> Ready:
    payload, step = case.message(), case.step()
    check(decode(payload, case.channel) == step, "decode(encode(step)) is not the step")
    return Ready(timed(partial(decode, payload, case.channel)), len(payload), 1)


def _rows(case: Case) -> Ready:
    payload, step = case.message(), case.step()
    rows = _floor.Rows(step, GPU)
    check(rows.block(payload) == step_bytes(step), "the floor copies other rows")
    return Ready(timed(partial(rows.copy, payload)), len(payload), 0)


def _numpy(case: Case) -> Ready:
    """The accepted rows cut out with NumPy, a few calls for the whole message; nothing is checked."""
    payload, step = case.message(), case.step()

    def cut() -> tuple[np.ndarray, ...]:
        words = np.frombuffer(payload, np.int32)
        cols, batch = int(words[1]) >> 8, int(words[2])
        counts = words[3 : 3 + batch]
        slots = words[515 : 515 + 512 * 258].reshape(512, 258)[:batch]
        live = np.arange(6) < counts[:, None]
        ids = slots[:, :126].reshape(batch, 6, 21)[:, :, :cols][live]
        scores = slots[:, 126:252].view(np.float32).reshape(batch, 6, 21)[:, :, :cols][live]
        ranks = slots[:, 252:][live]
        offsets = np.zeros(batch + 1, np.int32)
        np.cumsum(np.maximum(counts, 0), out=offsets[1:])
        return counts, offsets, ids, scores, ranks

    check(b"".join(part.tobytes() for part in cut()) == step_bytes(step), "NumPy finds other rows")
    return Ready(timed(cut), len(payload), 6)
