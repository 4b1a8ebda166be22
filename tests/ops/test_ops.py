"""The drop-in get ops: FastDeploy's tensors, element for element, on every framework at hand."""

import contextlib
import logging
import os
import subprocess
import textwrap
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.log_throttle import Backoff, Complaints
from fd_postproc.ops import receive
from tests import reference
from tests.lib.children import python
from tests.lib.frameworks import Numpy
from tests.lib.rows import each
from tests.lib.waiting import signalled, until

K = 20


SHAPES = {
    "plain": [(514, 1)],
    "topk": [(512 * 21 + 2, 1), (512 * 21, 1), (512,)],
    "spec": [(1794,)],
    "spec_topk": [(512 * 126 + 515, 1), (512 * 126, 1), (3072,)],
}


def fresh(channel):
    """Tensors as FastDeploy's TokenProcessor makes them."""
    fills = [(2, np.int64), (0, np.float32), (0, np.int64)]
    return [np.full(shape, *fill) for shape, fill in zip(SHAPES[channel], fills, strict=False)]


def call(channel, tensors, wait=True, rank=0, k=K, each=False):
    if channel == "plain":
        return ops.get_output(*tensors, rank, wait)
    if channel == "spec":
        return ops.speculate_get_output(*tensors, rank, wait, each)
    if channel == "topk":
        return ops.get_output_topk(*tensors, k, rank, wait)
    return ops.speculate_get_output_topk(*tensors, k, rank, wait)


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


def check_filled(send, framework, golden):
    send(golden.channel, golden.payload)
    tensors = [framework.tensor(array) for array in fresh(golden.channel)]
    returned = call(golden.channel, tensors)
    for tensor, array in zip(tensors, golden.tensors, strict=True):
        np.testing.assert_array_equal(framework.array(tensor).ravel(), array)
    returned = returned if isinstance(returned, list) else [returned]
    assert all(a is b for a, b in zip(returned, tensors, strict=True))


def test_every_golden_message_fills_the_tensors_as_fastdeploys_op_does(raised_limits, send, received_golden):
    check_filled(send, Numpy(), received_golden)


def test_golden_messages_fill_tensors_of_every_framework(raised_limits, send, framework, received_golden):
    check_filled(send, framework, received_golden)


def test_a_spec_message_of_512_requests_is_refused(send):
    """FastDeploy's own sender makes such a message (H3), and its receiver reads tokens as counts."""
    x = fresh("spec")[0]
    send("spec", np.array([1, 512] + [1] * 1792, np.int32).tobytes())
    call("spec", [x])
    assert x[:3].tolist() == [-2, 0, 2]


@each("channel", SHAPES)
def test_nothing_there(send, channel):
    tensors = fresh(channel)
    before = [tensor.copy() for tensor in tensors]
    call(channel, tensors, wait=False)
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
        call(channel, (tokens, scores, ranks), k=3)
        first = 2 if channel == "topk" else 515
        rows = tokens[first : first + 42, 0].reshape(2, 21)
        np.testing.assert_array_equal(rows[:, :columns], np.asarray(step.ids)[:, :columns])
        assert (rows[:, columns:] == 2).all()
        np.testing.assert_array_equal(
            scores[:42, 0].reshape(2, 21)[:, :columns], np.asarray(step.scores)[:, :columns]
        )
        assert (scores[:42, 0].reshape(2, 21)[:, columns:] == 0).all()
        assert ranks[:2].tolist() == [5, 6]


def test_a_short_spec_message_leaves_the_rest_alone(send):
    x = fresh("spec")[0]
    x[:] = 99
    payload = fp.encode(fp.Step.from_arrays("spec", [2, 1], [7, 8, 9]))
    send("spec", payload)
    call("spec", [x])
    assert x[: len(payload) // 4].tolist() == np.frombuffer(payload, np.int32).tolist()
    assert (x[len(payload) // 4 :] == 99).all()


@pytest.fixture
def complaints(monkeypatch):
    """What the get ops have to say, as if nothing had been said before."""
    monkeypatch.setattr(receive, "_complaints", Complaints(lambda text: receive.log.warning("%s", text)))


def test_malformed_messages_are_counted_and_logged_once(send, complaints, caplog):
    x = fresh("plain")[0]
    before = ops.receive_stats()["malformed"]
    for _ in range(3):
        send("plain", np.array([1, 513], np.int32).tobytes())
        call("plain", [x])
        assert x[:3, 0].tolist() == [-2, 0, 2]
    send("plain", b"\1\0\0\0\0\0\0\0", mtype=9)
    call("plain", [x])
    assert ops.receive_stats()["malformed"] == before + 4
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in texts if "batch 513 is outside 0..512" in text]) == 1
    assert len([text for text in texts if "message type 9, expected 1" in text]) == 1
    assert all(f"was process {os.getpid()} (" in text for text in texts)


def test_an_oversized_message_does_not_wedge_the_queue(send):
    x = fresh("plain")[0]
    send("plain", bytes(2057))
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    call("plain", [x])
    assert x[0, 0] == -2
    call("plain", [x])
    assert x[:3, 0].tolist() == [1, 1, 7]


def test_a_removed_queue_is_made_again(send):
    x = fresh("plain")[0]
    call("plain", [x], wait=False)
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()
    call("plain", [x], wait=False)
    assert x[0, 0] == -2
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    call("plain", [x], wait=False)
    assert x[2, 0] == 7


def test_what_was_counted_outlives_a_removed_queue(send):
    x = fresh("plain")[0]
    send("plain", fp.encode(fp.Step.from_arrays("plain", [1], [7])))
    call("plain", [x], wait=False)
    before = ops.receive_stats()["messages"]
    sysv_ipc.MessageQueue(queues.locate("plain")).remove()
    call("plain", [x], wait=False)
    assert ops.receive_stats()["messages"] == before > 0


def test_a_queue_that_is_removed_again_and_again_is_waited_for(send, complaints, caplog, monkeypatch):
    pauses = []
    monkeypatch.setattr(receive, "_removals", Backoff())
    monkeypatch.setattr(receive, "time", SimpleNamespace(sleep=pauses.append))
    x = fresh("plain")[0]
    for _ in range(5):
        removing = threading.Thread(target=remove_when_waiting)
        removing.start()
        call("plain", [x])
        removing.join()
    assert [round(pause, 2) for pause in pauses] == [0.0, 0.01, 0.02, 0.04, 0.08]
    assert caplog.text.count("removed it") == 1


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
    call("spec", [x])
    assert x[1] == 8
    assert ops.receive_stats()["incomplete"] == before + 1
    assert caplog.text.count("was never completed") == 1


def test_a_signal_ends_the_wait(send):
    x = fresh("plain")[0]
    seen = []
    with signalled(lambda *_: seen.append(1), lambda: True, repeat=True):
        call("plain", [x])
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
        call("plain", [x])
        assert x[2, 0] == token


@each("text, mode", [(None, 0o600), ("666", 0o666), ("0640", 0o640)])
def test_the_mode_of_a_new_queue(send, monkeypatch, text, mode):
    if text is not None:
        monkeypatch.setenv("FD_POSTPROC_QUEUE_MODE", text)
    call("plain", fresh("plain"), wait=False)
    assert sysv_ipc.MessageQueue(queues.locate("plain")).mode & 0o777 == mode


@each("text", ["rw", "999", "0", "777", "-600"])
def test_a_bad_mode(send, monkeypatch, text):
    monkeypatch.setenv("FD_POSTPROC_QUEUE_MODE", text)
    with pytest.raises(ValueError, match="FD_POSTPROC_QUEUE_MODE="):
        call("plain", fresh("plain"), wait=False)


def test_every_thread_may_call(send):
    """Two threads in one op at a time share the queue, not a buffer."""
    steps = 200
    got = []

    def take():
        x = fresh("plain")[0]
        while True:
            call("plain", [x])
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


def bad_tensors():
    good = fresh("topk")
    frozen = good[1].copy()
    frozen.flags.writeable = False
    return [
        (
            (list(range(600)), *good[1:]),
            TypeError,
            "x must be a Paddle or PyTorch tensor or a NumPy array, not list",
        ),
        ((good[0].astype(np.int32), *good[1:]), TypeError, "x has dtype int32, expected int64"),
        (
            (good[0], good[1].astype(np.float64), good[2]),
            TypeError,
            "scores has dtype float64, expected float32",
        ),
        ((good[0], good[1], good[2][:511]), ValueError, r"ranks has 511 elements \(shape \[511\]\)"),
        ((np.zeros((2, 512 * 21 + 2), np.int64).T, *good[1:]), ValueError, "x is not contiguous"),
        ((good[0], frozen, good[2]), ValueError, "scores is read-only"),
    ]


@each("case", range(6))
def test_unfit_tensors_are_refused_before_anything_is_received(send, case):
    tensors, error, text = bad_tensors()[case]
    send(
        "topk",
        fp.encode(fp.Step.from_arrays("topk", [-1], np.empty((0, 1)), np.empty((0, 1)), []))[:7] + b"\0",
    )
    with pytest.raises(error, match=text):
        call("topk", tensors)
    assert sysv_ipc.MessageQueue(queues.locate("topk")).current_messages == 1


@each("k", [-1, 21])
def test_k_must_fit_the_layout(send, k):
    with pytest.raises(ValueError, match=rf"k = {k} is outside 0\.\.20"):
        call("topk", fresh("topk"), k=k, wait=False)


def test_a_tensor_on_a_device_is_refused(send):
    """Paddle and PyTorch are asked where the memory is; here one that says 'elsewhere'."""

    class Place:
        def is_cpu_place(self):
            return False

        is_cuda_pinned_place = is_cpu_place

        def __str__(self):
            return "Place(gpu:0)"

    class OnDevice:
        place = Place()

        def data_ptr(self):
            raise AssertionError("must not be asked")

    with pytest.raises(ValueError, match=r"x is on Place\(gpu:0\)"):
        ops.get_output(OnDevice(), 0, False)


@pytest.mark.framework
def test_a_torch_tensor_without_memory_is_refused(send):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ValueError, match="x is a meta tensor"):
        ops.get_output(torch.empty(514, dtype=torch.int64, device="meta"), 0, False)


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


GET = {
    "topk": lambda tensors, layout: ops.get_output_topk(*tensors, 4, 0, True, layout=layout),
    "spec": lambda tensors, layout: ops.speculate_get_output(*tensors, 0, True, False, layout=layout),
    "spec_topk": lambda tensors, layout: ops.speculate_get_output_topk(*tensors, 4, 0, True, layout=layout),
}


@each("channel", GET)
def test_a_compact_frame_fills_the_tensors_as_a_packed_message_does(send, channel):
    counts = [1, -9, 1, -1] if channel == "topk" else [2, 0, -9, 1, 3, -3]
    rows = sum(count for count in counts if count > 0)
    cols = 1 if channel == "spec" else 3
    ids = np.arange(1, rows * cols + 1).reshape(rows, cols)
    logprobs = () if channel == "spec" else (-ids / 4, np.arange(rows) + 1)
    step = fp.Step.from_arrays(channel, counts, ids, *logprobs, flag=4, stop_flag=-1)
    # So small that a packed message fits the kernel's default limits.
    layout = fp.Layout(max_batch=8, top_k=4, max_draft=3, spec_batch=8)
    filled = []
    for dialect, mtype in ("packed", 1), ("compact", 2):
        send(channel, fp.encode(step, dialect, layout=layout), mtype)
        sizes = zip(fp._core.tensor_elements(channel, layout), (np.int64, np.float32, np.int64), strict=True)
        tensors = [np.full(size, 7, dtype) for size, dtype in sizes][: 1 + 2 * len(logprobs[:1])]
        GET[channel](tensors, layout)
        filled.append(tensors)
    packed, compact = filled
    # A frame has nothing where FastDeploy's op copies what nobody reads: dead cells, logprobs of codes.
    if channel == "spec":
        read = [*range(8), 10, 11, 19, 22, 23, 24]
        assert packed[0][read].tolist() == compact[0][read].tolist()
        return
    assert packed[0].tolist() == compact[0].tolist()
    read = [0, 2, 4, 5, 6, 7] if channel == "topk" else range(24)
    assert packed[2][read].tolist() == compact[2][read].tolist()
    if channel == "spec_topk":
        assert packed[1].tolist() == compact[1].tolist()


def test_a_frame_of_more_requests_than_fastdeploys_tensors_hold(send):
    send("spec", fp.encode(fp.Step.from_arrays("spec", [0] * 257, []), "compact"), 2)
    x = fresh("spec")[0]
    call("spec", [x])
    assert x[:3].tolist() == [-2, 0, 2]


def test_counters_have_their_names_before_anything_is_sent():
    code = """
        from fd_postproc import ops
        for stats in (ops.save_stats(), ops.receive_stats()):
            assert stats["waits"] == stats["messages"] == sum(stats.values()) == 0
    """
    subprocess.run(python(textwrap.dedent(code)), check=True)


def test_a_plain_step_fills_no_log_probabilities(send, complaints, caplog):
    """FastDeploy's worker sends one where no request has asked for any."""
    send("topk", fp.encode(fp.Step.from_arrays("plain", [1, 1], [[5], [6]]), "packed"))
    tensors = fresh("topk")
    before = [np.copy(tensor) for tensor in tensors]
    call("topk", tensors)
    assert "it is of channel 'plain'" in caplog.text
    np.testing.assert_array_equal(tensors[0][2:], before[0][2:])
    for tensor, old in zip(tensors[1:], before[1:], strict=True):
        np.testing.assert_array_equal(tensor, old)
