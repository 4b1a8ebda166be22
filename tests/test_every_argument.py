"""Every public function, given what it was not made for.

Each argument of each call in the table is replaced by each of the odd values, one at a time.  What follows
must be the right result or a documented exception, in plain words that name the argument, within a second:
no hang, no crash, no Python internals.
"""

import os
import re
import signal
import warnings

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import queues, reference
from fd_postproc.ops import arguments, flush, get_output, get_output_topk, save_output, save_output_topk
from fd_postproc.recording import Recording, RecordingWriter, is_recording

INTERNALS = re.compile(
    r"not supported between|C ssize_t|C (int|long)|convert|NoneType|object (has no|is not|cannot)|<built-in|"
    r"ufunc|operand|Traceback|unhashable|must be real number|0x[0-9a-f]{12}|it must have 0 rows|embedded null"
)
ALLOWED = (TypeError, ValueError, IndexError, fp.QueueError, OSError)

READ_ONLY = np.arange(4)
READ_ONLY.flags.writeable = False
ODD = {
    "none": None,
    "text": "8002",
    "hexadecimal": "0x1f42",
    "nul": "a\0b",
    "bytes": b"8002",
    "float": 3.9,
    "nan": float("nan"),
    "infinity": float("inf"),
    "bool": True,
    "complex": 1j,
    "negative": -1,
    "zero": 0,
    "2**31": 1 << 31,
    "2**70": 1 << 70,
    "5000 digits": 10**5000,
    "NumPy integer": np.int64(7),
    "NumPy float": np.float32(0.5),
    "NumPy bool": np.bool_(True),
    "0-d array": np.array(7),
    "strided array": np.arange(8)[::2],
    "read-only array": READ_ONLY,
    "float array": np.array([0.5, 1.5]),
    "2-d array": np.zeros((2, 2), np.int64),
    "text array": np.array(["a", "b"]),
    "dates": np.array(["2026-01-01"], "M8[D]"),
    "ragged list": [[1], [2, 3]],
    "list": [1, 2],
    "empty list": [],
    "dict": {},
    "object": object(),
    "class": int,
}
ENDLESS = ("none", "float", "infinity", "2**31", "2**70", "5000 digits", "NumPy integer", "0-d array")
"""Times that are good and long."""
FREE = {
    # (function, argument): odd values that are as good as any
    "wait_flag", "save_each_rank", "force",
}  # fmt: skip


def step(channel="spec_topk"):
    if channel == "plain":
        return fp.Step.from_arrays("plain", [1], [7])
    return fp.Step.from_arrays("spec_topk", [1], [[7, 8]], [[-0.5, -1.0]], [1])


STEP, PLAIN = step(), step("plain")
VIEW = STEP.logprobs(0)
PAYLOAD = fp.encode(STEP)
HOST = {"x": np.array([[7]]), "not_need_stop": np.array([True]), "preempted_idx": np.zeros(1, np.int32),
        "rank_id": 0, "save_each_rank": False}  # fmt: skip
TOPK = {"x": np.array([[7]]), "topk_ids": np.array([[7, 8]]),
        "logprob_scores": np.array([[-0.5, -1.0]], np.float32), "ranks": np.array([1]),
        "not_need_stop": np.array([True]), "preempted_idx": np.zeros(1, np.int32), "rank_id": 0}  # fmt: skip
FROM = {"counts": [1], "ids": [[7, 8]], "scores": [[-0.5, -1.0]], "ranks": [1], "flag": 3, "stop_flag": 1}

CALLS = {
    "Step.from_arrays": (lambda **a: fp.Step.from_arrays("spec_topk", **a), FROM),
    "Step.from_arrays channel": (lambda channel: fp.Step.from_arrays(channel, [], []), {"channel": "plain"}),
    "Step.token_ids": (STEP.token_ids, {"i": 0}),
    "Step.logprobs": (STEP.logprobs, {"i": 0}),
    "Logprobs.slice_rows": (VIEW.slice_rows, {"start": 0, "end": 1}),
    "Logprobs.slice_columns": (VIEW.slice_columns, {"start": 0, "end": 1}),
    "decode": (fp.decode, {"payload": PAYLOAD, "channel": "spec_topk", "mtype": 1, "layout": fp.GPU}),
    "encode": (fp.encode, {"step": STEP, "dialect": "packed", "layout": fp.GPU}),
    "reference.decode": (lambda mtype: reference.decode(PAYLOAD, "spec_topk", mtype=mtype), {"mtype": 1}),
    "Layout": (fp.Layout, {"max_batch": 4, "top_k": 2, "max_draft": 2, "spec_batch": 4}),
    "queue_key": (queues.queue_key, {"queue_id": 7, "path": "/tmp", "ftok": "custom"}),
    "inspect_queue": (queues.inspect_queue, {"msqid": 0}),
    "flush": (flush, {"timeout": 0}),
    "save_output": (save_output, HOST),
    "save_output_topk": (save_output_topk, TOPK),
    "get_output": (get_output, {"x": np.zeros(514, np.int64), "rank_id": 0, "wait_flag": False}),
    "get_output_topk": (
        get_output_topk,
        {"x": np.zeros(10754, np.int64), "scores": np.zeros(10752, np.float32),
         "ranks": np.zeros(512, np.int64),
         "k": 20, "rank_id": 0, "wait_flag": False},
    ),
    "check_flag": (arguments.check_flag, {"flag": 3}),
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
        if "has incorrect type (expected fd_postproc._core.Step" not in text:
            assert not INTERNALS.search(text), text
        assert len(text) < 500
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def cases():
    for name, (_, arguments_) in CALLS.items():
        for argument in arguments_:
            if argument not in FREE:
                yield pytest.param(name, argument, id=f"{name}-{argument}")


@pytest.mark.parametrize(("name", "argument"), [*cases()])
def test_every_argument_of_every_function(name, argument, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    call, good = CALLS[name]
    assert in_plain_words(call, good) is not None or name.startswith(("save", "get", "inspect"))
    ops_queue.remove()
    for value in ODD.values():
        in_plain_words(call, {**good, argument: value})
        ops_queue.remove()


@pytest.mark.parametrize("kind", [fp.Receiver, fp.Sender])
@pytest.mark.parametrize(
    "argument", ["channel", "queue_id", "key", "path", "ftok", "layout", "mode", "dialect"]
)
def test_every_argument_of_a_queue(kind, argument, queue_key):
    if argument == "dialect" and kind is fp.Receiver:
        return
    for value in ODD.values():
        good = {"channel": "plain", "key": queue_key}
        if argument in ("queue_id", "path"):
            good = {"channel": "plain", "queue_id": 50123}
        if argument == "ftok":
            good = {"channel": "plain", "queue_id": 50123}
        made = in_plain_words(kind, {**good, argument: value})
        if made is not None:
            made.close()
            queues.remove_queue(made.msqid)


def test_every_argument_of_a_receiver_and_a_sender(queue_key):
    with fp.Receiver("plain", key=queue_key) as receiver, fp.Sender("plain", key=queue_key) as sender:
        for name, value in ODD.items():
            if name not in ENDLESS:
                in_plain_words(receiver.receive, {"timeout": value})
            in_plain_words(sender.send, {"step": value, "timeout": 0})
            in_plain_words(sender.send, {"step": PLAIN, "timeout": value})
            assert receiver.receive(0) in (None, PLAIN)


def test_every_argument_of_a_recording(tmp_path):
    for number, value in enumerate(ODD.values()):
        path = tmp_path / f"{number}.fdrec"
        good = {"path": path, "channel": "plain", "layout": fp.GPU, "level": 1, "created_ns": 0}
        for argument in ("channel", "layout", "level", "created_ns"):
            writer = in_plain_words(RecordingWriter, {**good, argument: value, "force": True})
            if writer is not None:
                writer.close()
        with RecordingWriter(path, force=True) as writer:
            for argument, right in ("payload", b"abc"), ("mtype", 1), ("time_ns", 0):
                del right
                in_plain_words(writer.write, {"payload": b"abc", argument: value})
        if not isinstance(value, (int, str, bytes)):
            in_plain_words(lambda value: Recording(value), {"value": value})
            in_plain_words(lambda value: is_recording(value), {"value": value})
    assert os.listdir(tmp_path)


COMMANDS = {
    "demo": [["--steps"], ["--load"], ["--rows"], ["--pace"], ["--repeat"], ["--channel"]],
    "inspect": [[], ["8002", "--index"], ["8002", "--layout"], ["8002", "--rows"], ["8002", "--top"]],
    "record": [[], ["8002"], ["8002", "x", "--count"], ["8002", "x", "--seconds"], ["8002", "x", "--layout"]],
    "replay": [[], ["x"], ["x", "8002", "--speed"], ["x", "8002", "--timeout"], ["x", "8002", "--ftok"]],
    "doctor": [["--queue-id"], ["--batch"], ["--layout"], ["--columns"], ["--channel"], ["--path"]],
    "bench": [[], ["--rounds"], ["--compare"]],
}
TEXTS = ["", "-1", "0", "1e9", "nan", "0x10", "\u00b2", "8" * 5000, "key:", "key:-0x4fefe0be", "key:0",
         "msqid:x",
         "a b", "512,20", "1,2,3,4,5", "/nowhere/at/all", "\u96ea"]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_every_command(command, tmp_path, monkeypatch, capsys):
    from fd_postproc.cli import main

    monkeypatch.chdir(tmp_path)
    for before in COMMANDS[command]:
        for text in TEXTS:
            try:
                status = main([command, *before, text])
            except SystemExit as leaving:
                status = leaving.code
            out, err = capsys.readouterr()
            good = command == "doctor" and text in ("0", "key:-0x4fefe0be")
            assert status in (1, 2) or good, (before, text, out[-300:])
            assert "Traceback" not in err
            assert not INTERNALS.search(err.rpartition("error:")[2]), err[-500:]
