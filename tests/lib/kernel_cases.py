"""Calls of the kernel: random tensors, sizes, grids, and numbers that do not fit."""

import numpy as np
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc.ops.table import SAVE_OPS
from tests.lib.kernel_emulation import Call
from tests.lib.save_cases import CHANNELS, random_inputs

ROLES = {name: role for spec in SAVE_OPS.values() for role, name in spec.roles.items()}
TWO_DIMENSIONS = ("tokens", "ids", "scores")
LAYOUTS = [fp.GPU, fp.GPU, fp.Layout(128, 5, 6), fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)]

CASES = {
    "batch": st.integers(0, 12) | st.integers(0, 512) | st.sampled_from([255, 256, 257, 511, 512]),
    "cols": st.integers(1, 21),
    "seed": st.integers(0, 1 << 32),
    "layout": st.sampled_from(LAYOUTS),
    "dialect": st.sampled_from(["packed", "legacy", "compact"]),
    "stop_flag": st.sampled_from([0, 1, -7, 2147483647]),
    "flag": st.sampled_from([0, 3, 4]),
    "skip_prefill": st.booleans(),
}
GRIDS = {
    "blocks": st.sampled_from([0, 1, 2, 3, 7, 64]),
    "threads": st.sampled_from([32, 64, 96, 256, 512]),
    "order": st.integers(0, 1 << 32),
}


def slots(op, layout, dialect):
    return layout.spec_batch if CHANNELS[op] == "spec" and dialect != "compact" else layout.max_batch


def roles_of(inputs):
    """The arrays of a save op by role: one dimension where there is one number per request or row."""
    arrays = {ROLES[name]: value for name, value in inputs.items() if name in ROLES}
    return {role: a if role in TWO_DIMENSIONS else a.reshape(-1) for role, a in arrays.items()}


def strided(rng, array):
    """The same numbers with gaps between them, in another order, or in another integer type."""
    if array.dtype.kind == "i":
        limits = np.iinfo(np.int32)
        fits = array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max)
        array = array.astype(rng.choice([np.int32, np.int64]) if fits else np.int64)
    gaps = [int(rng.integers(1, 4)) for _ in array.shape]
    room = [size * gap + 1 for size, gap in zip(array.shape, gaps, strict=True)]
    order = "F" if rng.random() < 0.5 else "C"
    memory = np.frombuffer(rng.bytes(int(np.prod(room)) * array.itemsize), array.dtype)
    view = memory.copy().reshape(room, order=order)[tuple(slice(None, -1, gap) for gap in gaps)]
    view[...] = array
    return view


def random_call(op, batch, cols, seed, layout, dialect, **numbers):
    rng = np.random.default_rng(seed)
    batch = min(batch, slots(op, layout, dialect))
    inputs = random_inputs(op, batch, min(cols, layout.top_k + 1), seed, layout)
    arrays = roles_of(inputs)
    if rng.random() < 0.7:
        arrays = {role: strided(rng, array) for role, array in arrays.items()}
    seq, sender = (int(n) for n in rng.integers(0, 1 << 64, 2, dtype=np.uint64))
    service = int(rng.choice([0, rng.integers(1, 1 << 32)]))
    numbers = {"seq": seq, "sender": sender, "service": service, **numbers}
    return Call(op, dialect, layout, arrays, batch, **numbers), inputs


# Numbers of requests: those that decide what is sent.
DECIDING = ("counts", "offsets", "decoded", "prompts", "preempted", "steps")

WRONG = {
    "counts": [7, 99, -5, 2147483647, -2147483648],
    "offsets": [-1, -2147483648, 2147483647, 10000],
    "tokens": [1 << 31, -(1 << 31) - 1, 1 << 62, -(1 << 63)],
    "ids": [1 << 31, -(1 << 31) - 1, 1 << 62],
    "ranks": [1 << 31, -(1 << 63)],
    "decoded": [2147483647, -2147483648],
    "prompts": [(1 << 63) - 1, -(1 << 63)],
    "preempted": [2147483647, -2147483648],
    "steps": [(1 << 63) - 1, -(1 << 63)],
}


def spoil(rng, arrays):
    """Make one number wrong, which may or may not matter."""
    role = rng.choice([role for role in WRONG if role in arrays])
    if arrays[role].size:
        arrays[role] = array = arrays[role].copy()
        array.reshape(-1)[rng.integers(array.size)] = rng.choice(WRONG[role])
