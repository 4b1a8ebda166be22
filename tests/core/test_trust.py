"""What docs/security.md says about those who share a machine, and about what is written down."""

import logging
import struct
import subprocess

import numpy as np

import fd_postproc as fp
from fd_postproc import doctor, ops
from fd_postproc.cli import main
from tests.lib.children import python
from tests.lib.other_user import as_nobody
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

CHANNELS = ("plain", "topk", "spec", "spec_topk")
SECRET = 123454321


def secrets(channel):
    """A step whose every token is the same."""
    tokens = 4 if channel.endswith("topk") else 1
    logprobs = {"scores": [[-1.0] * tokens] * 3, "ranks": [1] * 3} if tokens > 1 else {}
    return fp.Step.from_arrays(channel, [1] * 3, [[SECRET] * tokens] * 3, **logprobs)


def damaged(channel):
    """Messages that hold the tokens, and do not add up."""
    for dialect, mtype in ("packed", 1), ("compact", 2):
        whole = fp.encode(secrets(channel), dialect)
        assert struct.pack("<i", SECRET) in whole
        yield whole[:-1], mtype
        yield whole + bytes(600_000), mtype
        yield whole, 3
        for at in range(0, min(len(whole), 80), 4):
            for word in -1, 7, 1 << 30:
                yield whole[:at] + struct.pack("<i", word) + whole[at + 4 :], mtype


@each("channel", CHANNELS)
def test_no_error_holds_a_token(channel):
    texts = []
    for payload, mtype in damaged(channel):
        try:
            fp.decode(payload, channel, mtype=mtype)
        except fp.MalformedMessage as error:
            texts.append(f"{error!r} {error}")
    assert len(texts) > 20
    assert not [text for text in texts if str(SECRET) in text]


def test_no_line_of_the_log_holds_a_token(raised_limits, ops_queue, caplog, monkeypatch):
    """Of the get ops, whose complaints are the plug-in's as well."""
    monkeypatch.setattr("fd_postproc.log_throttle.MOST_FIRST", 1000)
    tokens = np.zeros(1794, "int64")
    ops.speculate_get_output(tokens, 0, False, False)  # makes the queue
    queue = ops_queue.open("spec")
    with caplog.at_level(logging.DEBUG):
        for payload, mtype in damaged("spec"):
            queue.send(payload, type=mtype)
            ops.speculate_get_output(tokens, 0, False, False)
    assert len(caplog.records) > 3
    assert str(SECRET) not in caplog.text
    assert repr(secrets("spec")) not in caplog.text


# Everything comes twice: where the first of its kind goes, modules that are needed there may be imported.
AUDITED = """
import contextlib, pickle, sys
import numpy as np
import sysv_ipc
import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import tensor_elements
from fd_postproc.recording import Recording, RecordingWriter
from tests.reference import FrameHeader
from tests.lib.random_steps import random_step

class Trap:
    def __reduce__(self):
        return eval, ("1 + 1",)

GETS = {"plain": ops.get_output, "topk": ops.get_output_topk, "spec": ops.speculate_get_output,
        "spec_topk": ops.speculate_get_output_topk}
ARGUMENTS = {"plain": (0, False), "topk": (20, 0, False), "spec": (0, False, False),
             "spec_topk": (20, 0, False)}

def messages(channel):
    step = random_step(channel, 1, batch=9)
    for dialect, mtype in ("packed", 1), ("legacy", 1), ("compact", 2):
        whole = fp.encode(step, dialect)
        yield whole, mtype
        yield whole[:-1], mtype
        yield whole, 3
        for at in range(0, min(len(whole), 80), 4):
            yield whole[:at] + b"\\xff" * 4 + whole[at + 4 :], mtype
    header = FrameHeader.unpack(whole)
    yield header._replace(fragments=2, sender=7).pack(), 2
    yield header._replace(fragment=1, fragments=2).pack(), 2
    yield bytes(600_000), 1
    for protocol in range(6):
        yield pickle.dumps(Trap(), protocol), 1
        yield pickle.dumps(Trap(), protocol), 2
    yield b"import os; os.abort()", 1

def take_all(channel, path, came):
    with RecordingWriter(path, channel, force=True) as recording:
        for payload, mtype in came:
            recording.write(payload, mtype)
    kinds, sizes = ("int64", "float32", "int64"), tensor_elements(channel)
    tensors = [np.zeros(size, kind) for size, kind in zip(sizes, kinds) if size]
    with fp.Receiver(channel) as receiver:
        queue = sysv_ipc.MessageQueue(receiver.key, max_message_size=1 << 20)
        for message in Recording(path):
            with contextlib.suppress(fp.MalformedMessage):
                fp.decode(message.payload, channel, mtype=message.mtype).counts
            queue.send(message.payload, type=message.mtype)
            with contextlib.suppress(fp.MalformedMessage):
                receiver.receive(0)
            queue.send(message.payload, type=message.mtype)
            GETS[channel](*tensors, *ARGUMENTS[channel])
        assert not queue.current_messages
        return receiver.stats["malformed"], receiver.stats["oversized"]

seen, watching = [], False
def audit(event, arguments):
    if watching and event.split(".")[0] in ("exec", "compile", "import", "marshal", "pickle"):
        seen.append((event, str(arguments)[:80]))

path = sys.argv[1]
ready = {channel: list(messages(channel)) for channel in GETS}
for channel in GETS:
    take_all(channel, path, ready[channel])
sys.addaudithook(audit)
watching = True
eval("2")
assert len(seen) == 2, seen  # the hook hears
seen.clear()
for channel in GETS:
    refused = take_all(channel, path, ready[channel])
    assert refused[0] > 10 and refused[1] == 1, refused
watching = False
print(seen)
"""


def test_nothing_that_arrives_is_evaluated_imported_or_unpickled(raised_limits, ops_queue, tmp_path):
    """Python tells an audit hook of each of them."""
    done = subprocess.run(
        python(AUDITED, tmp_path / "messages.fdrec"), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "[]\n", done.stderr


@each("channel", CHANNELS)
def test_tokens_are_not_compared_with_a_vocabulary(channel):
    most = (1 << 31) - 1
    step = fp.Step.from_arrays(
        channel,
        [1, 1],
        [[0], [most]],
        **({"scores": [[0.0]] * 2, "ranks": [1, 1]} if channel.endswith("topk") else {}),
    )
    got = fp.decode(fp.encode(step), channel)
    assert [got.token_ids(i) for i in range(2)] == [[0], [most]]


UNPRIVILEGED = """
step = fp.decode(bytes.fromhex({frame!r}), "topk", mtype=2)
with fp.Receiver("topk", key={key}) as receiver, fp.Sender("topk", key={key}, dialect="compact") as sender:
    sender.send(step, 0)
    print(receiver.receive(0) == step, sender.stats["messages"])
    receiver.remove()
"""


def test_no_privileges_are_needed(default_limits, queue_key):
    """Not for messages beyond a new kernel's limits, either."""
    step = random_step("topk", 1, batch=80, cols=21, accepted=1)
    script = UNPRIVILEGED.format(frame=fp.encode(step, "compact").hex(), key=queue_key)
    done = as_nobody(script)
    assert done.stdout.split() == ["True", "2"], done.stderr


def test_the_doctor_changes_nothing(default_limits, queue, capsys, monkeypatch):
    def row():
        """Everything that the kernel says about the queue."""
        with open("/proc/sysvipc/msg") as file:
            return next(line for line in file if f" {queue.id} " in line)

    monkeypatch.setattr(doctor, "check_trial", list)  # in a process of its own, and of no queue
    queue.send(b"a", type=7)
    queue.send(b"stays", type=1)
    queue.receive()
    before = row()
    main(["doctor", "--queue-id", f"msqid:{queue.id}"])
    assert f"queue {queue.id} " in capsys.readouterr().out
    assert row() == before
    assert queue.receive(block=False) == (b"stays", 1)
