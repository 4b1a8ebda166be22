"""A step as bytes and back, as it would go through a pipe, a file or a pool of processes."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fd_postproc._core import Step, decode, encode

from .built import _floor
from .cases import HEADLINE, Case, Comparison, Ready, Unavailable, check, step_bytes, timed

ABOUT = (
    "a step -> bytes -> the step again; peers: its arrays or its nested lists; floor: the bytes copied twice"
)
REFERENCE = "floor"


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[-1],) if quick else HEADLINE:
        yield Comparison(str(case), {name: partial(_make, case, way) for name, way in WAYS.items()})


Way = tuple[Callable[[], Any], Any, int]  # there and back; the right result; bytes in between


def _make(case: Case, way: Callable[[Step], Way]) -> Ready:
    call, right, size = way(case.step())
    got = call()
    if isinstance(right, list):
        check(all(np.array_equal(a, b) for a, b in zip(got, right, strict=True)), "other arrays came back")
    else:
        check(got == right, "something else came back")
    return Ready(timed(call), size)


def _pickle(step: Step) -> Way:
    return lambda: pickle.loads(pickle.dumps(step, 5)), step, len(pickle.dumps(step, 5))


def _frame(step: Step) -> Way:
    def call() -> Step:
        return decode(encode(step, "compact"), step.channel, mtype=2)

    return call, step, len(encode(step, "compact"))


def _views(step: Step) -> Way:
    """Each request's Logprobs on its own."""
    views = tuple(step.logprobs(i) for i in range(step.batch))
    size = sum(len(pickle.dumps(view, 5)) for view in views)
    return lambda: tuple(pickle.loads(pickle.dumps(view, 5)) for view in views), views, size


def _pickle_arrays(step: Step) -> Way:
    arrays = [np.array(part) for part in (step.counts, step.ids, step.scores, step.ranks)]
    return lambda: pickle.loads(pickle.dumps(arrays, 5)), arrays, len(pickle.dumps(arrays, 5))


def _pickle_lists(step: Step) -> Way:
    lists = step.tolists()
    return lambda: pickle.loads(pickle.dumps(lists, 5)), lists, len(pickle.dumps(lists, 5))


def _msgpack(step: Step) -> Way:
    msgpack, lists = _module("msgpack"), step.tolists()

    def call() -> Any:
        return msgpack.unpackb(msgpack.packb(lists), use_list=True)

    return lambda: tuple(call()), lists, len(msgpack.packb(lists))


def _msgspec(step: Step) -> Way:
    msgspec, lists = _module("msgspec.msgpack"), step.tolists()
    encoder = msgspec.Encoder()
    decoder = msgspec.Decoder(tuple[list[list[list[int]]], list[list[list[float]]], list[list[int]]])
    return lambda: decoder.decode(encoder.encode(lists)), lists, len(encoder.encode(lists))


def _orjson(step: Step) -> Way:
    orjson, lists = _module("orjson"), step.tolists()
    return lambda: tuple(orjson.loads(orjson.dumps(lists))), lists, len(orjson.dumps(lists))


def _copies(step: Step) -> Way:
    payload = step_bytes(step)
    return _floor.Copier(payload).there_and_back, payload, len(payload)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise Unavailable(f"needs {package}: pip install {package}") from None


WAYS: dict[str, Callable[[Step], Way]] = {
    "fd_postproc": _pickle,
    "fd_postproc, compact frame": _frame,
    "fd_postproc, a Logprobs a request": _views,
    "pickle of arrays": _pickle_arrays,
    "pickle of lists": _pickle_lists,
    "msgpack of lists": _msgpack,
    "msgspec of lists": _msgspec,
    "orjson of lists": _orjson,
    "floor": _copies,
}
