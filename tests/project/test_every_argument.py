"""Every public function, given what it was not made for.

Each argument of each call in the table is replaced by each of the odd values, one at a time.  What follows
must be the right result or a documented exception, in plain words that name the argument, within a second:
no hang, no crash, no Python internals.
"""

import inspect
import os
import re
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.recording import Recording, RecordingWriter, is_recording
from tests.conftest import queue_ids
from tests.lib.rows import each
from tests.lib.save_cases import ATTRIBUTES, CHANNELS, random_inputs

INTERNALS = re.compile(
    r"not supported between|C ssize_t|C (int|long)|convert|NoneType|object (has no|is not|cannot)|<built-in|"
    r"incorrect type|ufunc|operand|Traceback|unhashable|must be real number|0x[0-9a-f]{12}|"
    r"it must have 0 rows|embedded null"
)
ALLOWED = (TypeError, ValueError, IndexError, fp.QueueError, OSError)

READ_ONLY = np.arange(4)
READ_ONLY.flags.writeable = False
ODD = (
    *(None, "8002", "0x1f42", "a\0b", b"8002", 3.9, float("nan"), float("inf"), True, 1j, -1, 0, 1 << 31),
    *(1 << 70, 10**5000, np.int64(7), np.float32(0.5), np.bool_(True), np.array(7), np.arange(8)[::2]),
    *(READ_ONLY, np.array([0.5, 1.5]), np.zeros((2, 2), np.int64), np.array(["a", "b"])),
    *(np.array(["2026-01-01"], "M8[D]"), [[1], [2, 3]], [1, 2], [], {}, object(), int),
)
FREE = {"wait_flag", "save_each_rank", "force", "skip_prefill", "skip_chunk_prefill", "get_each_rank",
        "is_mtp_prefill", "create", "async_output_queue", "sampling_mask_async_queue"}  # fmt: skip
"""Arguments of which any value is true or false, or which are not looked at."""


def step(channel="spec_topk"):
    if channel == "plain":
        return fp.Step.from_arrays("plain", [1], [7])
    return fp.Step.from_arrays("spec_topk", [1], [[7, 8]], [[-0.5, -1.0]], [1])


STEP, PLAIN = step(), step("plain")
VIEW = STEP.logprobs(0)
PAYLOAD, PLAIN_PAYLOAD = fp.encode(STEP), fp.encode(PLAIN)
FROM = {"counts": [1], "ids": [[7, 8]], "scores": [[-0.5, -1.0]], "ranks": [1], "flag": 3, "stop_flag": 1,
        "masks": {0: [7]}, "weight_version": "5"}  # fmt: skip
HERE = {"queue_id": 7, "path": "/tmp", "ftok": "custom"}
WORDS = {  # of each get op: its tensors, which are written into
    "get_output": {"x": 514},
    "get_output_ep": {"x": 514},
    "speculate_get_output": {"x": 2050},
    "get_output_topk": {"x": 10754, "scores": 10752, "ranks": 512},
    "speculate_get_output_topk": {"output_tokens": 65539, "output_scores": 64512, "output_ranks": 3072},
}


def get_op(name):
    sizes = WORDS[name]
    good = {x: np.zeros(size, np.float32 if "scores" in x else np.int64) for x, size in sizes.items()}
    good |= {"k": 20} if name == "get_output_topk" else {}
    good |= {"real_k": 20} if name == "speculate_get_output_topk" else {}
    good |= {"get_each_rank": False} if name == "speculate_get_output" else {}
    return getattr(ops, name), {**good, "rank_id": 0, "wait_flag": False, "layout": fp.GPU}


def save_op(module, name):
    function = getattr(module, name)
    names = list(inspect.signature(function).parameters)
    values = {**ATTRIBUTES, **random_inputs(name, 2, 2, 1), "layout": fp.GPU}
    values |= {"dialect": "packed", "message_id": 1}
    return function, {argument: values[argument] for argument in names}


def normal_step():
    model = SimpleNamespace(
        not_need_stop=np.array([True]), mp_rank=0, index_to_batch_id={}, enable_pd_reorder=False
    )
    sampled = SimpleNamespace(logprobs_tensors=None, sampled_token_ids=np.array([[7]]))
    return {"model_output": model, "sampler_output": sampled,
            "share_inputs": {"last_preempted_idx": np.zeros(1, np.int32)}}  # fmt: skip


def speculative_step():
    share = {"accept_tokens_cpu": np.array([[7]]), "accept_num_cpu": np.array([1], np.int32),
             "seq_lens_decoder_cpu": np.array([5], np.int32), "prompt_lens_cpu": np.array([3]),
             "last_preempted_idx": np.zeros(1, np.int32)}  # fmt: skip
    return {**normal_step(), "share_inputs": share, "proposer_share_inputs": None, "local_rank": 0,
            "tensor_parallel_rank": 0, "message_flag": 3, "skip_chunk_prefill": True}  # fmt: skip


RANKS = {"save_each_rank": False, "sampling_mask_async_queue": None, "layout": fp.GPU}


CALLS = {
    "Step.from_arrays": (fp.Step.from_arrays, {"channel": "spec_topk", **FROM, "as_recorded": False}),
    "Step.token_ids": (STEP.token_ids, {"i": 0}),
    "Step.logprobs": (STEP.logprobs, {"i": 0}),
    "Logprobs.slice_rows": (VIEW.slice_rows, {"start": 0, "end": 1}),
    "Logprobs.slice_columns": (VIEW.slice_columns, {"start": 0, "end": 1}),
    "decode": (fp.decode, {"payload": PAYLOAD, "channel": "spec_topk", "mtype": 1, "layout": fp.GPU}),
    "encode": (fp.encode, {"step": STEP, "dialect": "packed", "layout": fp.GPU}),
    "Layout": (fp.Layout, {"max_batch": 4, "top_k": 2, "max_draft": 2, "spec_batch": 4}),
    "queues.queue_key": (queues.queue_key, HERE),
    "queues.key_text": (queues.key_text, {"key": 7}),
    "queues.locate": (queues.locate, {"channel": "plain", "key": None, **HERE}),
    "queues.inspect_queue": (queues.inspect_queue, {"msqid": 0}),
    "queues.open_queue": (queues.open_queue, {"key": 77, "create": True, "mode": 0o600, "access": 0o400}),
    "queues.remove_queue": (queues.remove_queue, {"msqid": 0}),
    "ops.flush": (ops.flush, {"timeout": 0}),
    "ops.num_columns": (ops.num_columns, {"requested": [1, None], "layout": fp.GPU}),
    "ops.save_output_normal": (
        ops.save_output_normal, {**normal_step(), "async_output_queue": None, **RANKS}),
    "ops.save_output_speculate": (
        ops.save_output_speculate, {**speculative_step(), "is_mtp_prefill": False, **RANKS}),
    **{f"ops.{name}": get_op(name) for name in WORDS},
    **{f"ops.{name}": save_op(ops, name) for name in CHANNELS},
}  # fmt: skip


def in_plain_words(call, arguments):
    """The result, or None after a documented exception in plain words."""
    signal.setitimer(signal.ITIMER_REAL, 20)  # a hang ends the test run, as Ctrl-C would not
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return call(**arguments)
    except ALLOWED as error:
        text = str(error)
        assert text
        assert not INTERNALS.search(text), text
        assert len(text) < 500
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def cases():
    for name, (_, arguments_) in CALLS.items():
        for argument in arguments_:
            if argument not in FREE:
                yield name, argument


@each("name, argument", cases())
def test_every_argument_of_every_function(name, argument, default_limits, ops_queue, monkeypatch):
    """In an IPC namespace of its own: numbers may be those of somebody's queue."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    monkeypatch.setenv(
        "INFERENCE_MSG_QUEUE_ID", str(next(queue_ids))
    )  # the ops keep what they had of another
    call, good = CALLS[name]
    if not name.startswith("queues.") or "msqid" not in good:
        call(**good)
    ops_queue.remove()
    for value in ODD:
        in_plain_words(call, {**good, argument: value})
        ops_queue.remove()


@each("kind", [fp.Receiver, fp.Sender])
@each("argument", ["channel", "queue_id", "key", "path", "ftok", "layout", "mode", "dialect"])
def test_every_argument_of_a_queue(kind, argument, queue_key):
    if argument == "dialect" and kind is fp.Receiver:
        return
    for value in ODD:
        where = {"queue_id": 50123} if argument in ("queue_id", "path", "ftok") else {"key": queue_key}
        good = {"channel": "plain", **where}
        made = in_plain_words(kind, {**good, argument: value})
        if made is not None:
            made.close()
            queues.remove_queue(made.msqid)


def test_every_argument_of_a_receiver_and_a_sender(queue_key):
    with fp.Receiver("plain", key=queue_key) as receiver, fp.Sender("plain", key=queue_key) as sender:
        for value in ODD:
            sender.send(PLAIN, timeout=0)  # so that no good time is waited out, however long
            in_plain_words(receiver.receive, {"timeout": value})
            in_plain_words(sender.send, {"step": value, "timeout": 0})
            in_plain_words(sender.send, {"step": PLAIN, "timeout": value})
            for argument in (*FROM, "timeout"):
                some = {"counts": [1], "ids": [7], "timeout": 0, argument: value}
                in_plain_words(sender.send_arrays, some)
            while (step := receiver.receive(0)) is not None:
                assert step.counts == [1]


def test_missing_values_are_no_numbers():
    with pytest.raises(TypeError, match="ids is a masked array, with values that are missing"):
        fp.Step.from_arrays("plain", [1, 1], np.ma.array([5, 6], mask=[True, False]))
    assert fp.Step.from_arrays("plain", [1], np.ma.array([5])).token_ids(0) == [5]


def test_every_argument_of_a_recording(tmp_path):
    for number, value in enumerate(ODD):
        path = tmp_path / f"{number}.fdrec"
        good = {"path": path, "channel": "plain", "layout": fp.GPU, "level": 1, "created_ns": 0}
        for argument in ("channel", "layout", "level", "created_ns"):
            writer = in_plain_words(RecordingWriter, {**good, argument: value, "force": True})
            if writer is not None:
                writer.close()
        with RecordingWriter(path, force=True) as writer:
            for argument in "payload", "mtype", "time_ns":
                in_plain_words(writer.write, {"payload": b"abc", argument: value})
        if not isinstance(value, (int, str, bytes)):
            in_plain_words(Recording, {"path": value})
            in_plain_words(is_recording, {"path": value})
    assert os.listdir(tmp_path)
