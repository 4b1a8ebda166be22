"""The drop-in save ops: every byte that FastDeploy's op writes, through a real queue."""

import inspect
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import _OP_NUMBERS
from fd_postproc.core.tensors import ROLES
from fd_postproc.ops.table import SAVE_OPS
from tests import reference
from tests.lib.goldens import GOOD, PICKED
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.saving import assert_same, received_meanwhile, saved, send, step_of
from tests.lib.search import examples
from tests.reference import ReferenceStep

LAYOUTS = [fp.GPU, fp.Layout(128, 5, 6), fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)]


@each("op", SAVE_OPS)
def test_the_table_of_save_ops(op):
    """It is held to the ops themselves, to FastDeploy's arguments and to the numbers of the C code."""
    spec, parameters = SAVE_OPS[op], inspect.signature(getattr(ops, op)).parameters.values()
    assert spec.parameters == tuple(one.name for one in parameters if one.kind is not one.KEYWORD_ONLY)
    assert spec.parameters == reference.SAVE_OPS[op]
    assert set(spec.roles.values()) <= set(spec.parameters)
    assert set(spec.roles) <= set(ROLES)
    assert spec.channel == CHANNELS[op]
    assert set(SAVE_OPS) == set(_OP_NUMBERS)
    assert sorted(_OP_NUMBERS.values()) == list(range(len(SAVE_OPS)))


def recorded_call(golden):
    """The op, and the arguments that it was given when it was recorded."""
    op, inputs = golden.record["save_op"], golden.inputs()
    names = reference.SAVE_OPS[op]
    values = [json.loads(text.lower()) for text in golden.record["save_attrs"]]
    attributes = dict(zip(names[len(inputs) :], values, strict=True))
    return op, arguments(op, inputs, **attributes), inputs


def message_of(golden):
    """What the op must send; None: it refuses the sampled tokens of all requests as one column.

    An older op of FastDeploy took them so.
    """
    op, args, inputs = recorded_call(golden)
    table = inputs.get("sampled_token_ids")
    if table is not None and len(table) != len(inputs["token_num_per_batch"]):
        return None
    return saved(op, *args, dialect=golden.dialect)


def assert_recorded(golden, payload, expected):
    """Defect H7: FastDeploy's legacy op takes scores from the wrong rows of narrow logprob tensors."""
    legacy_topk = (golden.channel, golden.dialect) == ("spec_topk", "legacy")
    if not legacy_topk or recorded_call(golden)[2]["logprob_scores"].shape[1] == 21:
        assert len(payload) == reference.claimed(golden.payload, golden.channel)
        for part in expected.written:
            assert payload[part.start : part.stop] == golden.payload[part.start : part.stop], part
        assert reference.decode(payload, golden.channel) == reference.decode(golden.payload, golden.channel)


@each("golden", PICKED.values())
def test_recorded_messages(golden, raised_limits, ops_queue, monkeypatch, framework):
    op, args, _ = recorded_call(golden)
    monkeypatch.setenv("FD_POSTPROC_DIALECT", golden.dialect)
    args = [framework.tensor(value) if isinstance(value, np.ndarray) else value for value in args]
    expected = message_of(golden)
    if expected is None:
        with pytest.raises(ValueError, match=r"sampled_token_ids.*\[\d+, 1\]"):
            send(op, *args)
        assert ops_queue.waiting() == 0
        return
    send(op, *args)
    message = ops_queue.take(golden.channel)
    assert_same(message, expected)
    assert ReferenceStep.from_step(fp.decode(message[0], golden.channel)) == step_of(expected)
    assert_recorded(golden, message[0], expected)


@each("golden", GOOD.values())
def test_the_reference_saves_what_fastdeploy_saved(golden):
    if expected := message_of(golden):
        assert_recorded(golden, expected.payload, expected)


BATCHES = st.integers(0, 12) | st.sampled_from([255, 256, 257, 511, 512])


@each("op", CHANNELS)
def test_random_inputs(op, raised_limits, ops_queue, monkeypatch):
    @examples(10)
    @given(
        batch=BATCHES,
        cols=st.integers(1, 21),
        seed=st.integers(0, 1 << 32),
        layout=st.sampled_from(LAYOUTS),
        dialect=st.sampled_from(["packed", "legacy"]),
        message_id=st.sampled_from(["0", "1", "7", "2147483647"]),
        flag=st.sampled_from([0, 3, 4]),
        skip=st.booleans(),
    )
    def check(batch, cols, seed, layout, dialect, message_id, flag, skip):
        monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
        monkeypatch.setenv("INFERENCE_MSG_ID", message_id)
        inputs = random_inputs(op, batch, min(cols, layout.top_k + 1), seed, layout)
        args = arguments(op, inputs, message_flag=flag, skip_prefill=skip, skip_chunk_prefill=skip)
        before = [np.copy(value) for value in inputs.values()]
        slots = layout.spec_batch if CHANNELS[op] == "spec" else layout.max_batch
        if batch > slots:
            with pytest.raises(ValueError, match=f"{batch}.*{slots}"):
                send(op, *args, layout=layout)
            assert ops_queue.waiting() == 0
            return
        expected = saved(op, *args, dialect=dialect, message_id=int(message_id), layout=layout)
        send(op, *args, layout=layout)
        assert_same(ops_queue.take(CHANNELS[op]), expected)
        for value, old in zip(inputs.values(), before, strict=True):
            np.testing.assert_array_equal(value, old)

    check()


@each("op", CHANNELS)
def test_random_inputs_as_compact_frames(op, default_limits, ops_queue, monkeypatch):
    """The frame says what the packed message would say, whole or in fragments."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    channel = CHANNELS[op]

    @examples(5)
    @given(batch=st.integers(0, 12) | st.just(300), cols=st.integers(1, 21), seed=st.integers(0, 1 << 32))
    def check(batch, cols, seed):
        args = arguments(op, random_inputs(op, batch, cols, seed))
        wide = replace(fp.GPU, spec_batch=512)
        expected = step_of(saved(op, *args, layout=wide), wide)
        step = received_meanwhile(channel, lambda: send(op, *args))
        assert ReferenceStep.from_step(step) == replace(expected, dialect="compact", seq=step.seq)

    check()


def every_second(array):
    """The same numbers with others in between, in every dimension."""
    wide = np.full([2 * n for n in array.shape], 99).astype(array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def another_width(array):
    if array.dtype == np.int64:
        return array.astype(np.int32)
    return array.astype(np.int64) if array.dtype == np.int32 else array


FORMS = {
    "every second": every_second,
    "Fortran order": np.asfortranarray,
    "backwards": lambda array: array[::-1].copy()[::-1],
    "another width": another_width,
    "another width, every second": lambda array: every_second(another_width(array)),
    "one element a row": lambda array: (
        array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array
    ),
}


@each("form", FORMS)
@each("op", CHANNELS)
def test_other_forms_of_the_same_numbers(op, form, raised_limits, ops_queue):
    for seed in range(2):
        inputs = random_inputs(op, 5, 4, seed)
        expected = saved(op, *arguments(op, inputs))
        send(op, *arguments(op, {name: FORMS[form](array) for name, array in inputs.items()}))
        assert_same(ops_queue.take(CHANNELS[op]), expected)


def test_one_message_does_not_show_in_the_next(raised_limits, ops_queue):
    """What earlier, larger messages left in the buffer stays where nothing is said."""
    for seed, batch in enumerate([256, 3, 100, 1, 0, 2]):
        for op, channel in CHANNELS.items():
            args = arguments(op, random_inputs(op, batch, 1 + seed * 4, seed))
            send(op, *args)
            assert_same(ops_queue.take(channel), saved(op, *args))


@pytest.mark.realtime
def test_threads_do_not_share_a_message(raised_limits, ops_queue):
    """H16: FastDeploy's ops keep one buffer for all threads."""
    calls = [
        arguments("speculate_save_output_topk", random_inputs("speculate_save_output_topk", 20, 5, n))
        for n in range(4)
    ]

    def work(args):
        for _ in range(100):
            ops.speculate_save_output_topk(*args)

    threads = [threading.Thread(target=work, args=(args,)) for args in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    queue = ops_queue.open("spec_topk")
    assert queue.current_messages == 400
    left = {reference.encode(step_of(saved("speculate_save_output_topk", *args))): 100 for args in calls}
    while queue.current_messages:
        left[reference.encode(reference.decode(queue.receive()[0], "spec_topk"))] -= 1
    assert set(left.values()) == {0}
