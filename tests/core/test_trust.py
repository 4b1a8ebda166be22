"""What docs/security.md says about those who share a machine, and about what is written down."""

import logging
import re
import struct

import numpy as np

import fd_postproc as fp
from fd_postproc import doctor, ops
from fd_postproc.cli import main
from tests.lib.other_user import as_nobody
from tests.lib.paths import ROOT
from tests.lib.random_steps import random_step
from tests.lib.rows import each

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
    monkeypatch.setattr("fd_postproc.ops.log_throttle.MOST_FIRST", 1000)
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


EVALUATES = r"(?<![.\w])(?:eval|exec|compile|__import__|marshal\.loads?|pickle\.loads?|\w*Unpickler)\("


def test_nothing_that_arrives_is_evaluated_or_unpickled():
    """But for what FastDeploy's worker sends as a pickle, through a socket of its own user.

    The gate compiles FastDeploy's own files, and runs nothing of them.
    """
    found = {}
    for path in (ROOT / "fd_postproc").rglob("*.p[yx]*"):
        if path.suffix in (".py", ".pyx", ".pxi") and (calls := re.findall(EVALUATES, path.read_text())):
            found[path.name] = calls
    assert found == {"socket_source.py": ["pickle.loads("], "statements.py": ["compile("]}


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
    assert f"queue msqid:{queue.id} " in capsys.readouterr().out
    assert row() == before
    assert queue.receive(block=False) == (b"stays", 1)
