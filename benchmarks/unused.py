"""Does what a message does not use cost anything?

Each comparison sends the same tokens three ways: in a layout that has room for nothing else (``tight``), in
FastDeploy's own, where most of the message is unused, and, as a contrast, in FastDeploy's own with all of
it used.  The floors do the same without a check: what they lose to spread-out memory, decode cannot avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fd_postproc._core import Step, decode, encode, payload_size
from fd_postproc.layout import Layout

from .built import _floor
from .cases import Case, Comparison, Dialect, Ready, check, step_bytes, timed
from .runner import Compared

ABOUT = "decode() of the same tokens in messages with more or less unused room"
REFERENCE = "tight"
STOCK = Layout()
"""FastDeploy's own, but not the object `GPU`: decode() knows that one at sight, and converts others."""
WASTEFUL = ("1 of 21", "1 of 512, cut after it", "1 of 512, all sent", "2 of 6")
"""Contenders whose message has room for more than it holds."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    one_column = Case(columns=1)
    yield Comparison(
        "columns: b256 a2, 1 column",
        {
            **_both("tight", one_column, Layout(top_k=0)),
            **_both("1 of 21", one_column),
            "21 of 21": partial(_decode, Case().step(), STOCK),
            "1 asked for, legacy sends 21": partial(_decode, one_column.step(), STOCK, dialect="legacy"),
        },
    )
    one_request = Case(batch=1)
    yield Comparison(
        "slots: 1 request, a2 c21",
        {
            "tight": partial(_decode, one_request.step(), Layout(max_batch=1)),
            "1 of 512, cut after it": partial(_decode, one_request.step(), STOCK, full=False),
            "1 of 512, all sent": partial(_decode, one_request.step(), STOCK),
            "512 in the batch, 1 with tokens": partial(_decode, _idle_but_one(512), STOCK),
            "512 of 512": partial(_decode, Case(batch=512).step(), STOCK),
        },
    )
    two_tokens = Case()
    yield Comparison(
        "draft positions: b256 c21, 2 tokens",
        {
            **_both("tight", two_tokens, Layout(max_draft=2)),
            **_both("2 of 6", two_tokens),
            "6 of 6": partial(_decode, Case(accepted=6).step(), STOCK),
        },
    )


def _both(name: str, case: Case, layout: Layout = STOCK) -> dict[str, Callable[[], Ready]]:
    return {
        name: partial(_decode, case.step(), layout),
        f"{name}, floor": partial(_rows, case.step(), layout),
    }


def _idle_but_one(batch: int) -> Step:
    """A step in which the last of `batch` requests has two tokens and the others none."""
    one = Case(batch=1).step()
    counts = [0] * (batch - 1) + one.counts
    return Step.from_arrays(one.channel, counts, one.ids, one.scores, one.ranks)


def _message(step: Step, layout: Layout, dialect: Dialect = "packed", full: bool = True) -> bytes:
    payload = encode(step, dialect, layout=layout)
    return payload.ljust(payload_size(step.channel, layout), b"\0") if full else payload


def _decode(step: Step, layout: Layout, dialect: Dialect = "packed", full: bool = True) -> Ready:
    payload = _message(step, layout, dialect, full)
    got = decode(payload, step.channel, layout=layout)
    if dialect == "packed":
        check(got == step, "decode(encode(step)) is not the step")
    else:
        same = (np.asarray(got.ids)[:, : step.cols] == np.asarray(step.ids)).all()
        check(bool(same) and got.cols == layout.top_k + 1, "the legacy message holds other tokens")
    return Ready(timed(partial(decode, payload, step.channel, layout=layout)), len(payload), 1)


def _rows(step: Step, layout: Layout) -> Ready:
    payload = _message(step, layout)
    rows = _floor.Rows(step, layout)
    check(rows.block(payload) == step_bytes(step), "the floor copies other rows")
    return Ready(timed(partial(rows.copy, payload)), len(payload), 0)


def ratios(compared: list[Compared]) -> dict[str, float]:
    """Fastest time in a message with unused room by that in a tight one; the floors' where there are any."""
    found = {}
    for one in compared:
        for name in WASTEFUL:
            for way, tight in ((name, "tight"), (f"{name}, floor", "tight, floor")):
                if way in one.results and tight in one.results:
                    label = f"{one.case.partition(':')[0]}: {way}"
                    found[label] = one.results[way].ratio_of_best(one.results[tight])
    return found


def notes(compared: list[Compared]) -> list[str]:
    """How flat the cost is."""
    return [f"{label}: {ratio:.2f} times a tight layout" for label, ratio in ratios(compared).items()]
