"""The drop-in save ops: every byte that FastDeploy's op writes, through a real queue."""

import json
import os
import re
import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest
import sysv_ipc
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops, queues
from tests import reference
from tests.lib.children import python
from tests.lib.save_cases import CHANNELS, arguments, positional, random_inputs
from tests.lib.search import examples
from tests.reference import ReferenceStep

LAYOUTS = [fp.GPU, fp.Layout(128, 5, 6), fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)]
RANKED = [op for op in CHANNELS if op.startswith("mtp")]  # ranks above 0 may send, if save_each_rank


def saved(op, *args, **keywords):
    return getattr(reference, op)(*args, **keywords)


def send(op, *args, **keywords):
    return getattr(ops, op)(*args, **keywords)


def assert_same(message, expected):
    """Every byte that FastDeploy's op writes is the same, and no other is sent beyond them."""
    payload, mtype = message
    assert mtype == 1
    assert len(payload) == len(expected.payload)
    for part in expected.written:
        ours, theirs = payload[part.start : part.stop], expected.payload[part.start : part.stop]
        assert ours == theirs, f"bytes {part}"


def step_of(expected, layout=fp.GPU):
    return reference.decode(expected.payload, expected.channel, layout=layout)


@pytest.mark.parametrize("op", CHANNELS)
def test_arguments_are_fastdeploys(op):
    assert positional(getattr(ops, op)) == positional(getattr(reference, op))


# ---- The recorded messages -------------------------------------------------------------------------------


def recorded_call(golden):
    """The op, and the arguments that it was given when it was recorded."""
    op, inputs = golden.record["save_op"], golden.inputs()
    names = positional(getattr(reference, op))
    values = [json.loads(text.lower()) for text in golden.record["save_attrs"]]
    attributes = dict(zip(names[len(inputs) :], values, strict=True))
    return op, arguments(op, inputs, **attributes), inputs


def wrong_rows(golden, inputs):
    """Defect H7: FastDeploy's legacy op takes these from the wrong rows of narrow logprob tensors."""
    return (
        golden.channel == "spec_topk"
        and golden.dialect == "legacy"
        and inputs["logprob_scores"].shape[1] != 21
    )


def flat_sampled(inputs):
    """An older op took the sampled tokens of all requests as one column."""
    table = inputs.get("sampled_token_ids")
    return table is not None and len(table) != len(inputs["token_num_per_batch"])


def check_recorded_message(golden, ops_queue, monkeypatch, tensor):
    op, args, inputs = recorded_call(golden)
    monkeypatch.setenv("FD_POSTPROC_DIALECT", golden.dialect)
    args = [tensor(value) if isinstance(value, np.ndarray) else value for value in args]
    if flat_sampled(inputs):
        with pytest.raises(ValueError, match=r"sampled_token_ids.*\[\d+, 1\]"):
            send(op, *args)
        assert ops_queue.waiting() == 0
        return
    send(op, *args)
    message = ops_queue.take(golden.channel)
    expected = saved(op, *recorded_call(golden)[1], dialect=golden.dialect)
    assert_same(message, expected)
    decoded = ReferenceStep.from_step(fp.decode(message[0], golden.channel))
    assert decoded == step_of(expected)
    if wrong_rows(golden, inputs):
        return  # the message above is what the tensors say, the recorded one is not
    assert len(message[0]) == reference.claimed(golden.payload, golden.channel)
    for part in expected.written:
        assert message[0][part.start : part.stop] == golden.payload[part.start : part.stop], part
    assert decoded == reference.decode(golden.payload, golden.channel)


def test_recorded_messages(golden, raised_limits, ops_queue, monkeypatch):
    check_recorded_message(golden, ops_queue, monkeypatch, np.asarray)


@pytest.mark.parametrize(
    "name", ["plain_b3_stop_s7", "topk_packed_b3_c6_s1009", "spec_b3_s1003", "spectopk_legacy_b3_c21_s1024"]
)
def test_recorded_messages_from_tensors(name, goldens, raised_limits, ops_queue, monkeypatch, framework):
    check_recorded_message(goldens[name], ops_queue, monkeypatch, framework.tensor)


@pytest.mark.nightly
def test_all_recorded_messages_from_tensors(golden, raised_limits, ops_queue, monkeypatch, framework):
    check_recorded_message(golden, ops_queue, monkeypatch, framework.tensor)


@pytest.mark.sample
def test_the_reference_saves_what_fastdeploy_saved(golden):
    op, args, inputs = recorded_call(golden)
    if flat_sampled(inputs):
        return
    expected = saved(op, *args, dialect=golden.dialect)
    differ = [
        part
        for part in expected.written
        if expected.payload[part.start : part.stop] != golden.payload[part.start : part.stop]
    ]
    assert len(expected.payload) == reference.claimed(golden.payload, golden.channel)
    if not wrong_rows(golden, inputs):
        assert not differ
        assert step_of(expected) == reference.decode(golden.payload, golden.channel)


def test_narrow_legacy_logprobs_are_the_right_ones(goldens, raised_limits, ops_queue, monkeypatch):
    """H7: 6 columns in a legacy message: FastDeploy's rows are shifted, ours are not."""
    golden = goldens["spectopk_legacy_b3_c6_s1009"]
    op, args, inputs = recorded_call(golden)
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "legacy")
    send(op, *args)
    ours, theirs = (
        fp.decode(ops_queue.take("spec_topk")[0], "spec_topk"),
        fp.decode(golden.payload, "spec_topk"),
    )
    i = next(i for i, count in enumerate(ours.counts) if count > 1)
    first = inputs["cu_batch_token_offset"][i] + 1
    row = inputs["logprob_token_ids"][first].tolist()
    assert ours.logprobs(i).slice_rows(1, 2).logprob_token_ids[0][1:] == row[1:] + [-1] * 15
    assert theirs.logprobs(i).slice_rows(1, 2).logprob_token_ids[0][1:6] != row[1:]


# ---- Random inputs ---------------------------------------------------------------------------------------

BATCHES = st.integers(0, 12) | st.sampled_from([255, 256, 257, 511, 512])


@pytest.mark.parametrize("op", CHANNELS)
def test_random_inputs(op, raised_limits, ops_queue, monkeypatch):
    @examples(30)
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


@pytest.mark.parametrize("op", CHANNELS)
def test_random_inputs_as_compact_frames(op, default_limits, ops_queue, monkeypatch):
    """The frame says what the packed message would say, whole or in fragments."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    channel = CHANNELS[op]

    @examples(15)
    @given(batch=st.integers(0, 12) | st.just(300), cols=st.integers(1, 21), seed=st.integers(0, 1 << 32))
    def check(batch, cols, seed):
        args = arguments(op, random_inputs(op, batch, cols, seed))
        wide = replace(fp.GPU, spec_batch=512)
        expected = step_of(saved(op, *args, layout=wide), wide)
        step = received_meanwhile(channel, lambda: send(op, *args))
        assert ReferenceStep.from_step(step) == replace(expected, dialect="compact", seq=step.seq)

    check()


def received_meanwhile(channel, act):
    """What a receiver gets while another thread acts; the queue may be too small to hold it all."""
    with fp.Receiver(channel) as receiver:
        got = []
        thread = threading.Thread(target=lambda: got.append(receiver.receive(20)))
        thread.start()
        act()
        thread.join(30)
        assert got, "nothing came"
        assert receiver.receive(0) is None
    return got[0]


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", CHANNELS)
def test_other_forms_of_the_same_numbers(op, form, raised_limits, ops_queue):
    for seed in range(4):
        inputs = random_inputs(op, 5, 4, seed)
        expected = saved(op, *arguments(op, inputs))
        send(op, *arguments(op, {name: FORMS[form](array) for name, array in inputs.items()}))
        assert_same(ops_queue.take(CHANNELS[op]), expected)


@pytest.mark.parametrize("op", CHANNELS)
def test_tensors_of_every_framework(op, raised_limits, ops_queue, framework):
    for seed in range(3):
        inputs = random_inputs(op, 9, 6, seed)
        expected = saved(op, *arguments(op, inputs))
        send(op, *arguments(op, {name: framework.tensor(array) for name, array in inputs.items()}))
        assert_same(ops_queue.take(CHANNELS[op]), expected)


@pytest.mark.framework
@pytest.mark.parametrize("library", ["torch", "paddle"])
def test_transposed_tensors(library, raised_limits, ops_queue):
    from tests.lib.frameworks import FRAMEWORKS, made

    make = made(FRAMEWORKS[library].values[0]).tensor
    inputs = random_inputs("save_output_topk", 5, 4, 1)
    expected = saved("save_output_topk", *arguments("save_output_topk", inputs))
    turned = dict(inputs)
    for name in ("topk_ids", "logprob_scores"):
        tensor = make(np.ascontiguousarray(inputs[name].T))
        turned[name] = tensor.T if library == "torch" else tensor.transpose([1, 0])
    send("save_output_topk", *arguments("save_output_topk", turned))
    assert_same(ops_queue.take("topk"), expected)


def test_one_message_does_not_show_in_the_next(raised_limits, ops_queue):
    """What earlier, larger messages left in the buffer stays where nothing is said."""
    for seed, batch in enumerate([256, 3, 100, 1, 0, 2]):
        for op, channel in CHANNELS.items():
            args = arguments(op, random_inputs(op, batch, 1 + seed * 4, seed))
            send(op, *args)
            assert_same(ops_queue.take(channel), saved(op, *args))


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


# ---- Ranks and the environment ---------------------------------------------------------------------------


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("rank", [-1, 0, 1, 7])
@pytest.mark.parametrize("op", CHANNELS)
def test_ranks_above_0(op, rank, each, ops_queue):
    args = arguments(op, random_inputs(op, 2, 3, 1), rank_id=rank, save_each_rank=each)
    sends = rank <= 0 or (each and op in RANKED)
    assert (saved(op, *args) is not None) == sends
    if CHANNELS[op].endswith("topk"):
        os.environ["FD_POSTPROC_DIALECT"] = "compact"  # fits the default limits
    send(op, *args)
    assert ops_queue.waiting() == sends


@pytest.mark.parametrize("dialect", ["packed", "compact"])
@pytest.mark.parametrize(("text", "number"), [(None, 1), ("0", 0), ("1", 1), ("3", 3), ("77", 77)])
def test_message_id(text, number, dialect, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    if text is not None:
        monkeypatch.setenv("INFERENCE_MSG_ID", text)
    inputs = random_inputs("save_output", 2, 1, 1)
    for more, word in (True, number), (False, -number):
        inputs["not_need_stop"] = np.array([more])
        ops.save_output(*arguments("save_output", inputs))
        payload, mtype = ops_queue.take("plain")
        assert fp.decode(payload, "plain", mtype=mtype).stop_flag == word


@pytest.mark.parametrize(
    "text", ["2", "-1", "one", "1.5", "0x1", "4294967296", "99999999999999999999", "2147483648"]
)
def test_bad_message_id(text, ops_queue, monkeypatch):
    monkeypatch.setenv("INFERENCE_MSG_ID", text)
    with pytest.raises(ValueError, match=f"INFERENCE_MSG_ID={text!r}"):
        ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))
    assert ops_queue.waiting() == 0


@pytest.mark.parametrize("text", ["dense", "PACKED", "auto,packed"])
def test_bad_dialect(text, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", text)
    with pytest.raises(ValueError, match=f"FD_POSTPROC_DIALECT={text!r}"):
        ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))
    assert ops_queue.waiting() == 0


def test_bad_queue_id(ops_queue, monkeypatch):
    with monkeypatch.context() as inside:
        inside.setenv("INFERENCE_MSG_QUEUE_ID", "five")
        with pytest.raises(ValueError, match="INFERENCE_MSG_QUEUE_ID='five'"):
            ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))


@pytest.mark.parametrize(
    ("dialect", "peer", "op", "batch", "mtype"),
    [
        (None, None, "save_output_topk", 3, 1),
        ("auto", None, "save_output_topk", 3, 1),
        ("auto", "compact/1", "save_output_topk", 3, 2),
        ("auto", "compact/1", "save_output", 3, 1),
        ("auto", "compact/1", "speculate_save_output", 256, 1),
        ("auto", "compact/1", "speculate_save_output", 257, 2),
        ("auto", "compact/1", "mtp_save_first_token", 257, 2),
        (None, "compact/1", "speculate_save_output_topk", 3, 2),
        (None, "compact/2", "save_output_topk", 3, 1),
        (None, "other/1,compact/1", "save_output_topk", 3, 2),
        ("packed", "compact/1", "save_output_topk", 3, 1),
        ("legacy", "compact/1", "save_output_topk", 3, 1),
        ("compact", None, "save_output", 3, 2),
        ("compact", None, "speculate_save_output", 257, 2),
    ],
)
def test_which_dialect(dialect, peer, op, batch, mtype, raised_limits, ops_queue, monkeypatch):
    for name, value in ("FD_POSTPROC_DIALECT", dialect), ("FD_POSTPROC_PEER", peer):
        if value is not None:
            monkeypatch.setenv(name, value)
    args = arguments(op, random_inputs(op, batch, 21, 1))
    send(op, *args)
    payload, found = ops_queue.take(CHANNELS[op])
    assert found == mtype
    wide = replace(fp.GPU, spec_batch=512)
    step = ReferenceStep.from_step(fp.decode(payload, CHANNELS[op], mtype=mtype))
    expected = step_of(saved(op, *args, layout=wide), wide)
    assert step == replace(expected, dialect=step.dialect, seq=step.seq)


def test_the_queue_follows_the_environment(ops_queue, monkeypatch):
    """H9: FastDeploy's ops keep the first queue forever."""
    args = arguments("save_output", random_inputs("save_output", 2, 1, 1))
    ops.save_output(*args)
    first = os.environ["INFERENCE_MSG_QUEUE_ID"]
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", str(int(first) ^ 1))
    try:
        ops.save_output(*args)
        assert ops_queue.waiting() == 1
    finally:
        ops_queue.remove()
        monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", first)
    assert ops_queue.waiting() == 1


@pytest.mark.parametrize(("text", "mode"), [(None, 0o600), ("666", 0o666)])
def test_the_mode_of_a_new_queue(text, mode, ops_queue, monkeypatch):
    if text is not None:
        monkeypatch.setenv("FD_POSTPROC_QUEUE_MODE", text)
    ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))
    assert ops_queue.open("plain").mode & 0o777 == mode


def test_flush(ops_queue):
    """CPU tensors are sent before the op returns."""
    ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))
    assert ops_queue.waiting() == 1
    assert ops.flush() is True
    assert ops.flush(timeout=0) is True


# ---- Limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in CHANNELS if CHANNELS[op].endswith("topk")])
def test_a_message_that_no_queue_can_hold(op, default_limits, ops_queue):
    args = arguments(op, random_inputs(op, 512, 3, 1))
    with pytest.raises(fp.MessageTooBig) as caught:
        send(op, *args)
    size = len(saved(op, *args).payload)
    assert (caught.value.size, caught.value.limit) == (size, 8192)
    for fragment in str(size), "8192", "msgmax", "sysctl", "compact":
        assert fragment in str(caught.value)
    assert ops_queue.waiting() == 0
    small = arguments("save_output", random_inputs("save_output", 512, 1, 1))
    ops.save_output(*small)  # and the next one goes through
    assert ops_queue.waiting() == 1


@pytest.mark.parametrize("op", [op for op in CHANNELS if CHANNELS[op].endswith("topk")])
def test_a_peer_that_understands_compact_frames_gets_it_whole(op, default_limits, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    args = arguments(op, random_inputs(op, 512, 21, 1))
    step = received_meanwhile(CHANNELS[op], lambda: send(op, *args))
    expected = step_of(saved(op, *args))
    assert ReferenceStep.from_step(step) == replace(expected, dialect="compact", seq=step.seq)


def test_an_old_queue_that_is_too_small(raised_limits, ops_queue):
    """msg_qbytes is fixed when a queue is made: FastDeploy's op would wait on it forever."""
    queue = sysv_ipc.MessageQueue(queues.locate("spec_topk"), sysv_ipc.IPC_CREX, mode=0o600)
    queue.max_size = 4096
    args = arguments("speculate_save_output_topk", random_inputs("speculate_save_output_topk", 100, 3, 1))
    with pytest.raises(fp.MessageTooBig, match=r"msg_qbytes") as caught:
        ops.speculate_save_output_topk(*args)
    assert caught.value.limit == 4096
    assert ops_queue.waiting() == 0


def test_a_removed_queue_is_made_again(ops_queue):
    args = arguments("save_output", random_inputs("save_output", 2, 1, 1))
    ops.save_output(*args)
    ops_queue.remove()
    with pytest.raises(fp.QueueRemoved):
        ops.save_output(*args)
    ops.save_output(*args)
    assert ops_queue.waiting() == 1


def test_a_forked_child_watches_its_own_waits(ops_queue):
    """No thread but the caller survives a fork."""
    code = """
import os, sys, threading, warnings
import numpy as np
from fd_postproc import ops
def save():
    ops.save_output(np.array([[5]]), True, np.zeros(1, np.int32), 0, False)
    return "fd_postproc-watch" in [thread.name for thread in threading.enumerate()]
assert save()
warnings.simplefilter("ignore")  # Python 3.12 warns of forks with threads
child = os.fork()
if child == 0:
    os._exit(0 if save() else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run(python(code), timeout=60).returncode == 0


WAITING = """
import logging, signal, sys
import numpy as np
from fd_postproc import ops
from fd_postproc.ops import watch
signal.alarm(60)  # ends it, should nothing be told
logging.basicConfig(format="%(message)s", stream=sys.stderr)
assert watch.WATCH_SECONDS == 10
watch.WATCH_SECONDS = float(sys.argv[1])
save = lambda: ops.save_output(np.array([[5]]), True, np.zeros(1, np.int32), 0, False)
while True:
    save()
"""


@pytest.mark.parametrize("seconds", [0.1, pytest.param(10.0, marks=pytest.mark.nightly)])
def test_every_so_many_seconds_of_a_full_queue_are_logged(seconds, default_limits, ops_queue):
    """H1: FastDeploy's op drops the step.  10 s unless a test cannot wait for so long."""
    process = subprocess.Popen(python(WAITING, seconds), stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stderr.readline() for _ in range(3)]
    finally:
        process.kill()
        process.communicate()
    text = re.compile(r"queue \d+ \(plain, key .*\) has been full for (\d+) s: .*\n")
    told = [text.fullmatch(line) for line in lines]
    assert all(told), lines
    waited = [int(line.group(1)) for line in told]
    for n, so_long in enumerate(waited):
        assert (n + 1) * seconds - 0.6 <= so_long <= (n + 2) * seconds + 5
