"""The floors of making results and of the get ops do what they stand for."""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import sysv_ipc

import fd_postproc as fp
from benchmarks import _floor
from benchmarks._objects import Objects
from benchmarks.cases import tensors_of
from benchmarks.gets import _OPS
from benchmarks.receive import tensors_hold
from tests.lib.rows import each


class Rows(NamedTuple):
    ids: list
    ranks: list


@dataclass(slots=True)
class Slotted:
    first: object
    second: object = None


class WithDict:
    def __init__(self, **values):
        self.__dict__.update(values)


def graph():
    rows = Rows([[1000, 2000], [3000]], [1, 2])
    return [
        WithDict(name="a", when=1.5, outputs=Slotted(rows, {"k": [3.5]}), none=None),
        WithDict(name="b", when=2.5, outputs=Slotted(None), none=None),
    ]


KNOWN = {WithDict: True, Slotted: False, Rows: False}


def test_objects_are_made_anew_and_equal():
    original = graph()
    made = Objects(original, KNOWN).make()
    for old, new in zip(original, made, strict=True):
        assert type(new) is WithDict
        assert new is not old
        assert list(vars(new)) == list(vars(old))
        assert new.name is old.name
        assert new.when is old.when
        assert new.outputs == old.outputs
        assert new.outputs is not old.outputs
    rows = made[0].outputs.first
    assert type(rows) is Rows
    assert rows.ids[0] is not original[0].outputs.first.ids[0]
    assert rows.ids[0][0] is not original[0].outputs.first.ids[0][0]
    made[0].extra = 1  # an instance's dict is its own
    assert not hasattr(original[0], "extra")
    assert made[0].outputs.second["k"] is not original[0].outputs.second["k"]


# ---- Get ops ------------------------------------------------------------------------------------------


def uneven(channel):
    """A step in which requests differ."""
    rng = np.random.default_rng(3)
    speculative = channel.startswith("spec")
    counts = [2, 0, -9, 6, 1] if speculative else [1] * 5
    rows, cols = sum(max(count, 0) for count in counts), 4 if channel.endswith("topk") else 1
    ids = rng.integers(0, 1000, (rows, cols))
    if not channel.endswith("topk"):
        return fp.Step.from_arrays(channel, counts, ids)
    return fp.Step.from_arrays(channel, counts, ids, -rng.random((rows, cols)), range(1, rows + 1))


def queue_of(channel):
    """The queue that the op of a channel reads, made anew."""
    key = fp.queues.locate(channel)
    with contextlib.suppress(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(key).remove()
    return sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)


@each("channel", ["plain", "topk", "spec", "spec_topk"])
def test_the_restated_get_op_writes_what_ours_writes(raised_limits, ops_queue, channel):
    step = uneven(channel)
    queue = queue_of(channel)
    payload = fp.encode(step).ljust(fp._core.payload_size(channel, fp.GPU), b"\0")
    ours, stock = tensors_of(channel), tensors_of(channel)
    op, rest = _OPS[channel]
    queue.send(payload, type=1)
    op(*ours, *rest)
    queue.send(payload, type=1)
    assert _floor.StockGet(channel, stock, queue.id).get() == len(payload)
    for mine, theirs in zip(ours, stock, strict=True):
        assert (mine == theirs).all()
    assert tensors_hold(ours, step)
    assert _floor.StockGet(channel, stock, queue.id).get() < 0


@each(("channel", "words"), [("topk", (1, 5 | 4 << 16)), ("spec_topk", (1, 3 | 4 << 8, 5))])
def test_the_floor_of_get_ops_writes_what_ours_writes(ops_queue, channel, words):
    step = uneven(channel)
    queue = queue_of(channel)
    payload = fp.encode(step, "compact")
    ours, floor = tensors_of(channel), tensors_of(channel)
    op, rest = _OPS[channel]
    queue.send(payload, type=2)
    op(*ours, *rest)
    queue.send(payload, type=2)
    assert _floor.Spreader(step, floor, words, 64, queue.id, len(payload)).get() == len(payload)
    for mine, theirs in zip(ours, floor, strict=True):
        assert (mine == theirs).all()


@each("channel", ["topk", "spec"])
def test_tensors_with_another_token_are_noticed(raised_limits, ops_queue, channel):
    step = uneven(channel)
    queue = queue_of(channel)
    queue.send(fp.encode(step), type=1)
    tensors = tensors_of(channel)
    op, rest = _OPS[channel]
    op(*tensors, *rest)
    assert tensors_hold(tensors, step)
    first = {"topk": 2, "spec": 258}[channel]
    tensors[0][first] += 1
    assert not tensors_hold(tensors, step)
