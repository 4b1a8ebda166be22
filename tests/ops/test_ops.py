"""The drop-in get ops: FastDeploy's tensors, element for element, on every framework at hand."""

import contextlib
import logging
import os
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.ops import receive
from fd_postproc.ops.log_throttle import Backoff, Complaints
from tests import reference
from tests.lib.goldens import PICKED
from tests.lib.nursery import nursery
from tests.lib.rows import each
from tests.lib.waiting import signalled, until

SHAPES = {
    "plain": [(514, 1)],
    "topk": [(512 * 21 + 2, 1), (512 * 21, 1), (512,)],
    "spec": [(1794,)],
    "spec_topk": [(512 * 126 + 515, 1), (512 * 126, 1), (3072,)],
}


def fresh(channel):
    """New tensors for a get op."""
    fills = [(2, np.int64), (0, np.float32), (0, np.int64)]
    return [np.full(shape, *fill) for shape, fill in zip(SHAPES[channel], fills, strict=False)]


def get(channel, tensors, wait=True, k=20):
    """Call the get op of a channel as FastDeploy's TokenProcessor does; what it returns."""
    if channel == "plain":
        return ops.get_output(*tensors, 0, wait)
    if channel == "spec":
        return ops.speculate_get_output(*tensors, 0, wait, False)
    if channel == "topk":
        return ops.get_output_topk(*tensors, k, 0, wait)
    return ops.speculate_get_output_topk(*tensors, k, 0, wait)


@pytest.fixture
def send(monkeypatch, queue_id):
    """A function that sends a payload to the queue that the ops of a channel will read."""
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", str(queue_id))
    made = []

    def send(channel, payload, mtype=1):
        key = queues.locate(channel)
        queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, mode=0o600, max_message_size=len(payload) or 1)
        made.append(queue)
        queue.send(payload, type=mtype)
        return queue

    yield send
    keys = {queues.locate(channel) for channel in SHAPES} | {queue.key for queue in made}
    for key in keys:
        with contextlib.suppress(sysv_ipc.ExistentialError):
            sysv_ipc.MessageQueue(key).remove()


@each("golden", PICKED.values())
def test_recorded_messages_fill_tensors_of_every_framework(golden, raised_limits, send, framework):
    send(golden.channel, golden.payload)
    tensors = [framework.tensor(array) for array in fresh(golden.channel)]
    returned = get(golden.channel, tensors)
    for tensor, array in zip(tensors, golden.tensors, strict=True):
        np.testing.assert_array_equal(framework.array(tensor).ravel(), array)
    returned = returned if isinstance(returned, list) else [returned]
    assert all(a is b for a, b in zip(returned, tensors, strict=True))


@each(
    "channel, payload, mtype",
    [
        ("plain", bytes(2057), 1),
        # FastDeploy's own sender makes such a message (H3), and its receiver reads tokens as counts.
        ("spec", np.array([1, 512] + [1] * 1792, np.int32).tobytes(), 1),
        ("spec", fp.encode(fp.Step.from_arrays("spec", [0] * 257, []), "compact"), 2),
    ],
)
def test_a_message_that_is_refused_does_not_wedge_the_queue(channel, payload, mtype, send):
    x = fresh(channel)[0]
    send(channel, payload, mtype)
    send(channel, fp.encode(fp.Step.from_arrays(channel, [1], [7])))
    get(channel, [x])
    assert x.ravel()[:3].tolist() == [-2, 0, 2]
    get(channel, [x])
    assert x.ravel()[:3].tolist() == [1, 1, 7 if channel == "plain" else 1]


@each("channel", SHAPES)
def test_nothing_there(send, channel):
    tensors = fresh(channel)
    before = [tensor.copy() for tensor in tensors]
    get(channel, tensors, wait=False)
    words = 3 if channel == "spec_topk" else 2
    before[0].reshape(-1)[:words] = [-2, 0, 0][:words]
    for tensor, array in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(tensor, array)


def test_ranks_above_0(send):
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    x = fresh("plain")[0]
    assert ops.get_output(x, 1, True) is x
    assert (x == 2).all()
    ops.get_output_ep(x, 1, True)
    assert x[:3, 0].tolist() == [1, 1, 7]

    send("spec", fp.encode(fp.Step.from_arrays("spec", [1], [7])))
    x = fresh("spec")[0]
    ops.speculate_get_output(x, 1, True, False)
    assert (x == 2).all()
    ops.speculate_get_output(x, 1, True, True)
    assert x[:3].tolist() == [1, 1, 1]


def step_of_two(channel):
    counts = [1, 1] if channel == "topk" else [2, 0]
    ids = np.arange(2 * 21).reshape(2, 21)
    return fp.Step.from_arrays(channel, counts, ids, -ids / 8, [5, 6])


@each("channel", ["topk", "spec_topk"])
def test_k_limits_the_columns_of_legacy_messages_only(raised_limits, send, channel):
    step = step_of_two(channel)
    for dialect, columns in ("legacy", 4), ("packed", 21):
        send(channel, fp.encode(step, dialect))
        tokens, scores, ranks = fresh(channel)
        get(channel, (tokens, scores, ranks), k=3)
        first = 2 if channel == "topk" else 515
        rows = tokens[first : first + 42, 0].reshape(2, 21)
        np.testing.assert_array_equal(rows[:, :columns], np.asarray(step.ids)[:, :columns])
        assert (rows[:, columns:] == 2).all()
        np.testing.assert_array_equal(
            scores[:42, 0].reshape(2, 21)[:, :columns], np.asarray(step.scores)[:, :columns]
        )
        assert (scores[:42, 0].reshape(2, 21)[:, columns:] == 0).all()
        assert ranks[:2].tolist() == [5, 6]


@pytest.fixture
def complaints(monkeypatch):
    """What the get ops have to say, as if nothing had been said before."""
    monkeypatch.setattr(receive, "_complaints", Complaints(lambda text: receive.log.warning("%s", text)))


def test_malformed_messages_are_counted_and_logged_once(send, complaints, caplog):
    x = fresh("plain")[0]
    before = ops.receive_stats()["malformed"]
    for _ in range(3):
        send("plain", np.array([1, 513], np.int32).tobytes())
        get("plain", [x])
        assert x[:3, 0].tolist() == [-2, 0, 2]
    send("plain", b"\1\0\0\0\0\0\0\0", mtype=9)
    get("plain", [x])
    assert ops.receive_stats()["malformed"] == before + 4
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in texts if "batch 513 is outside 0..512" in text]) == 1
    assert len([text for text in texts if "message type 9, expected 1" in text]) == 1
    assert all(f"was process {os.getpid()} (" in text for text in texts)


def test_a_removed_queue_is_made_again(send, monkeypatch):
    monkeypatch.setattr(receive, "_removals", None)  # who does not wait for a message never waits
    x = fresh("plain")[0]
    get("plain", [x], wait=False)
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()
    get("plain", [x], wait=False)
    assert x[0, 0] == -2
    before = ops.receive_stats()["messages"]
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    get("plain", [x], wait=False)
    assert x[2, 0] == 7
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()
    get("plain", [x], wait=False)
    assert ops.receive_stats()["messages"] == before + 1  # what was counted outlives its queue


@pytest.mark.realtime
def test_a_queue_that_is_removed_again_and_again_is_waited_for(send, complaints, caplog, monkeypatch):
    pauses = []
    monkeypatch.setattr(receive, "_removals", Backoff())
    monkeypatch.setattr(receive, "time", SimpleNamespace(sleep=pauses.append))
    x = fresh("plain")[0]
    for _ in range(5):
        removing = threading.Thread(target=remove_when_waiting)
        removing.start()
        get("plain", [x])
        removing.join()
    assert [round(pause, 2) for pause in pauses] == [0.0, 0.01, 0.02, 0.04, 0.08]
    assert caplog.text.count("it was removed") == 1


def remove_when_waiting():
    until(lambda: any(info.key == queues.locate("plain") for info in queues.list_queues()))
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()


def test_frames_that_never_become_whole_are_counted_and_logged(send, complaints, caplog):
    x = fresh("spec")[0]
    before = ops.receive_stats()["incomplete"]
    whole = fp.encode(fp.Step.from_arrays("spec", [1] * 8, list(range(8))), "compact")
    parts = reference.split(whole, 80)
    for _ in range(3):
        send("spec", parts[0], mtype=2)
    send("spec", whole, mtype=2)
    get("spec", [x])
    assert x[1] == 8
    assert ops.receive_stats()["incomplete"] == before + 1
    assert caplog.text.count("was never completed") == 1


@pytest.mark.realtime
def test_a_signal_ends_the_wait(send):
    x = fresh("plain")[0]
    seen = []
    with signalled(lambda *_: seen.append(1), lambda: True, repeat=True):
        get("plain", [x])
    assert seen
    assert x[:2, 0].tolist() == [-2, 0]


def test_the_queue_follows_the_environment(send, monkeypatch):
    first = os.environ["INFERENCE_MSG_QUEUE_ID"]
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    second = str(int(first) + 1)
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", second)
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [8])))
    for queue_id, token in (first, 7), (second, 8):
        monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", queue_id)
        x = fresh("plain")[0]
        get("plain", [x])
        assert x[2, 0] == token


@each("text, mode", [(None, 0o600), ("666", 0o666), ("0640", 0o640)])
def test_the_mode_of_a_new_queue(text, mode, ops_queue, monkeypatch):
    if text is not None:
        monkeypatch.setenv("FD_POSTPROC_QUEUE_MODE", text)
    save = partial(ops.save_output, np.array([[1]]), np.array([True]), np.zeros(1, np.int32), 0, False)
    for call in partial(get, "plain", fresh("plain"), wait=False), save:
        call()
        queue = ops_queue.open("plain")
        assert queue.mode & 0o777 == mode
        queue.remove()
        with contextlib.suppress(fp.QueueRemoved):
            call()
        ops_queue.remove()
    for bad in "rw", "999", "0", "777", "-600":
        monkeypatch.setenv("FD_POSTPROC_QUEUE_MODE", bad)
        for call in partial(get, "plain", fresh("plain"), wait=False), save:
            with pytest.raises(ValueError, match="FD_POSTPROC_QUEUE_MODE="):
                call()


@pytest.mark.realtime
def test_every_thread_may_call(send):
    """Two threads in one op at a time share the queue, not a buffer."""
    steps = 200
    got = []

    def take():
        x = fresh("plain")[0]
        while True:
            get("plain", [x])
            if x[0, 0] < 0:
                return
            got.append(int(x[2, 0]))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for token in range(steps):
        send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [token])))
    for _ in threads:
        send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [0], stop_flag=-1)))
    for thread in threads:
        thread.join(20)
    assert sorted(got) == list(range(steps))


FROZEN = np.zeros((512 * 21, 1), np.float32)
FROZEN.flags.writeable = False
BAD_TENSORS = [  # of those of topk: which, what it becomes, and what is said
    (
        0,
        lambda x: list(range(600)),
        TypeError,
        "x must be a Paddle .* or a NumPy array, not list",
    ),
    (0, lambda x: x.astype(np.int32), TypeError, "x has dtype int32, expected int64"),
    (1, lambda x: x.astype(np.float64), TypeError, "scores has dtype float64, expected float32"),
    (2, lambda x: x[:511], ValueError, r"ranks has 511 elements \(shape \[511\]\)"),
    (0, lambda x: np.zeros((2, x.size), np.int64).T, ValueError, "x is not contiguous .*give a new"),
    (1, lambda x: FROZEN, ValueError, "scores is read-only"),
]


@each("which, change, error, text", BAD_TENSORS)
def test_unfit_tensors_are_refused_before_anything_is_received(send, which, change, error, text):
    queue, tensors = send("topk", b"anything"), fresh("topk")
    tensors[which] = change(tensors[which])
    with pytest.raises(error, match=text):
        get("topk", tensors)
    for k in -1, 21:
        with pytest.raises(ValueError, match=rf"k = {k} is outside 0\.\.20"):
            get("topk", fresh("topk"), k=k, wait=False)
    for wait in "no", None:
        with pytest.raises(TypeError, match=f"wait_flag must be True or False, not {wait!r}"):
            get("topk", fresh("topk"), wait=wait)
    assert queue.current_messages == 1
    queue.receive()


def test_another_layout(send):
    step = fp.Step.from_arrays(
        "spec_topk", [6, -3], np.arange(36).reshape(6, 6), np.zeros((6, 6)), np.arange(1, 7)
    )
    send("spec_topk", fp.encode(step, layout=fp.Layout(128, 5, 6)))
    tensors = [np.full(3 + 128 + 128 * 36, 2), np.zeros(128 * 36, np.float32), np.zeros(128 * 6, np.int64)]
    ops.speculate_get_output_topk(*tensors, 5, 0, True, layout=fp.Layout(128, 5, 6))
    assert tensors[0][:6].tolist() == [1, 3 | 6 << 8, 2, 6, -3, 2]
    assert tensors[0][131 : 131 + 36].tolist() == list(range(36))
    assert tensors[2][:6].tolist() == list(range(1, 7))


def test_counters_have_their_names_before_anything_is_sent():
    code = """
from fd_postproc import ops
for stats in (ops.save_stats(), ops.receive_stats()):
    assert stats["waits"] == stats["messages"] == sum(stats.values()) == 0
"""
    assert nursery().run(code).returncode == 0


def test_a_plain_step_fills_no_log_probabilities(send, complaints, caplog):
    """FastDeploy's worker sends one where no request has asked for any."""
    send("topk", fp.encode(fp.Step.from_arrays("plain", [1, 1], [[5], [6]]), "packed"))
    tensors = fresh("topk")
    before = [np.copy(tensor) for tensor in tensors]
    get("topk", tensors)
    assert "it is of channel 'plain'" in caplog.text
    np.testing.assert_array_equal(tensors[0][2:], before[0][2:])
    for tensor, old in zip(tensors[1:], before[1:], strict=True):
        np.testing.assert_array_equal(tensor, old)
