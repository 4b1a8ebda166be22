"""Kernels and sandboxes that refuse or hide what Linux allows; docs/operators.md, "Where it runs"."""

import errno
import os
import shutil
import subprocess
from unittest.mock import Mock

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import doctor, queues
from fd_postproc.doctor.limits import check_hidden
from tests.conftest import set_limit
from tests.lib.children import in_a_child, python
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.sandboxes import ABOVE, IPC_INFO, ONE_OF, PIDS_ONLY, need, refuse
from tests.lib.sending import in_thread, pipe, same
from tests.lib.waiting import PATIENCE

CUT = {"channel": "topk", "seed": 1, "batch": 64, "cols": 21}  # a frame that takes several messages


@pytest.mark.realtime
@each("code", [errno.EACCES, errno.EPERM, errno.ENOSYS])
def test_ipc_info_is_refused(code, default_limits, queue_keys, caplog):
    """The limit is read from /proc instead; what was lowered or raised since is noticed; said once."""
    key, sent = queue_keys(), random_step(**CUT)
    packed = len(fp.encode(sent, "packed"))

    def work():
        queues.report_limits.cache_clear()
        refuse("msgctl", ONE_OF, IPC_INFO, code)
        with pipe(key, "topk") as (sender, receiver):
            for limit in 8192, 700:
                set_limit("msgmax", limit)
                with in_thread(sender.send, sent, 20):
                    assert same(receiver.receive(20), sent)
                assert sender.limit == limit
            assert sysv_ipc.MessageQueue(key).current_messages == 0
            stock = fp.Sender("topk", key=key, dialect="packed")
            with pytest.raises(fp.MessageTooBig, match=r"kernel\.msgmax = 700"):
                stock.send(sent)
            set_limit("msgmax", packed)
            set_limit("msgmnb", 2 * packed)
            sysv_ipc.MessageQueue(key).max_size = 2 * packed
            stock.send(sent)
            assert receiver.receive(0) == sent
        (said,) = {record.message for record in caplog.records}
        for word in "msgctl(IPC_INFO)", os.strerror(code), "read from /proc/sys/kernel/msgmax":
            assert word in said
        assert len(caplog.records) == 1
        (found,) = check_hidden(doctor.take(doctor.Scope()))
        assert (found.code, found.severity, found.seen) == ("limits-hidden", "info", said)

    in_a_child(work)


def test_a_frame_that_fits_asks_for_no_limit(default_limits, queue):
    """After the first one a step is one system call."""
    small = random_step("topk", 1, batch=2, cols=3)

    def work():
        with pipe(queue.key, "topk") as (sender, receiver):
            sender.send(small)
            refuse("msgctl", ABOVE, 0, errno.EPERM)
            for _ in range(10):
                sender.send(small)
            for _ in range(11):
                assert same(receiver.receive(0), small)

    in_a_child(work)


@pytest.mark.realtime
def test_a_frame_that_fitted_is_cut_when_the_limit_was_lowered(default_limits, queue):
    sent = random_step("spec_topk", 1, batch=10, cols=3, accepted=6)
    size = len(fp.encode(sent, "compact"))
    with pipe(queue.key) as (sender, receiver):
        for lowered in "msgmax", "max_size":
            default_limits("msgmax", 8192)
            sender.send(sent)
            assert same(receiver.receive(0), sent)
            before = sender.stats["messages"]
            if lowered == "msgmax":
                default_limits("msgmax", 1000)
            else:
                queue.max_size = 1000
            with in_thread(sender.send, sent, 20) as outcome:
                assert same(receiver.receive(20), sent)
            assert outcome == [None]
            assert sender.stats["messages"] - before == -(-(size - 64) // (1000 - 64))
        assert receiver.stats["missing"] == receiver.stats["incomplete"] == 0


def refuse_long_buffers():
    """As gVisor's msgrcv does."""
    refuse("msgrcv", ABOVE, 8192, errno.EINVAL)


@pytest.mark.realtime
@each("channel", ["plain", "topk", "spec", "spec_topk"])
def test_a_receiver_offers_less_where_its_buffer_is_refused(channel, default_limits, queue_keys):
    key = queue_keys()
    sent = random_step(channel, 1, **({"batch": 64, "cols": 21} if "topk" in channel else {"batch": 64}))

    def work():
        refuse_long_buffers()
        with pipe(key, channel) as (sender, receiver):
            for timeout in 0, 0.01:
                assert receiver.receive(timeout) is None
            with in_thread(sender.send, sent, 20) as outcome:
                assert same(receiver.receive(), sent)
            assert outcome == [None]
            for _ in range(2):
                sysv_ipc.MessageQueue(key, max_message_size=8192).send(b"x" * 8192)
            for _ in range(2):
                with pytest.raises(fp.MalformedMessage):
                    receiver.receive(0)
            with in_thread(sender.send, sent, 20):
                assert same(receiver.receive(20), sent)
            queues.remove_queue(receiver.msqid)
            with pytest.raises(fp.QueueRemoved, match="open it again"):
                receiver.receive(0)

    in_a_child(work)


def test_raw_messages_are_received_where_a_long_buffer_is_refused(default_limits, queue):
    """By 'record', and when an engine drops what an earlier run left."""

    def work():
        refuse_long_buffers()
        for size in 5, 8192:
            queue.send(bytes(size), type=7)
            assert queues.take_raw(queue) == (bytes(size), 7)
        assert queues.take_raw(queue) is None
        queue.remove()
        anew = sysv_ipc.MessageQueue(queue.key, sysv_ipc.IPC_CREX)
        anew.send(b"another's")
        with pytest.raises(sysv_ipc.ExistentialError):
            queues.take_raw(queue)
        assert anew.current_messages == 1
        anew.remove()

    in_a_child(work)


def test_no_queue_is_said_to_be_gone_that_is_there(queue):
    def work():
        receiver = fp.Receiver("topk", key=queue.key)
        refuse("msgrcv", ABOVE, 0, errno.EINVAL)
        with pytest.raises(
            fp.QueueError, match="though the queue is there: this kernel or sandbox"
        ) as caught:
            receiver.receive(0)
        assert type(caught.value) is fp.QueueError

    in_a_child(work)


@each("code, text", [(errno.EPERM, "a sandbox has to allow .* msgctl"), (errno.ENOSYS, "not implemented")])
def test_msgctl_is_refused_altogether(code, text, queue):
    """It is not known then how long a message may be; nothing is guessed, and queues are still listed."""

    def work():
        refuse("msgctl", ABOVE, 0, code)
        with pytest.raises(fp.QueueError, match=text):
            fp.Sender("plain", key=queue.key)
        (here,) = (one for one in queues.list_queues() if one.key == queue.key)
        assert here.max_bytes is None

    in_a_child(work)


HIDDEN = """
import errno, logging
from fd_postproc import doctor, queues
from tests.lib.sandboxes import *
logging.basicConfig(format="%(message)s")
key = int(sys.argv[1])
here = queues.inspect_queue(queues.open_queue(key))
assert here.key == key and here in queues.list_queues()
limits = queues.kernel_limits()
assert (limits.msgmax, limits.msgmni) == (7000, 1)
try:
    fp.Sender("plain", key=key + 1)
except fp.QueueError as error:
    assert "all 1 queues that kernel.msgmni allows" in str(error)
else:
    raise AssertionError
found = {one.code for one in doctor.examine(doctor.Scope(keys=frozenset([key]), trial=False))}
assert "queue" in found and not found & {"limits-hidden", "queues-hidden"}
refuse("msgctl", ABOVE, 2, errno.EPERM)
queues.report_limits.cache_clear()
assert queues.kernel_limits() == queues.NEW_KERNEL
with fp.Sender("plain", key=key) as sender, fp.Receiver("plain", key=key) as receiver:
    sender.send_arrays([1], [5])
    assert receiver.receive(0).token_ids(0) == [5]
assert queues.inspect_queue(here.msqid).key == key
found = {one.code: one for one in doctor.examine(doctor.Scope(keys=frozenset([key]), trial=False))}
assert found["limits-hidden"].severity == "warning" and found["queues-hidden"].severity == "info"
assert found["queue"].msqid == here.msqid
"""


def test_proc_shows_processes_only(default_limits, queue):
    """The kernel is asked for limits and queues; where it does not answer either, the doctor says so."""
    need(PIDS_ONLY)
    default_limits("msgmni", 1)
    default_limits("msgmax", 7000)
    script = f"import sys\nimport fd_postproc as fp\n{HIDDEN}"
    done = subprocess.run(
        [*PIDS_ONLY, *python(script, queue.key)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "/proc/sys/kernel/msgmax is hidden, too: 8,192 bytes are assumed" in done.stderr


def test_where_proc_is_hidden_no_queue_is_none_and_another_users_is_there(
    default_limits, queue_key, monkeypatch
):
    monkeypatch.setattr(queues, "_TABLE", "/nowhere")
    assert queues.list_queues() == []
    msqid = queues.open_queue(queue_key)
    assert [one.msqid for one in queues.list_queues()] == [msqid]
    for code, error in (errno.EACCES, fp.QueuePermission), (errno.EINVAL, fp.QueueMissing):
        monkeypatch.setattr(queues, "_msgctl", Mock(side_effect=OSError(code, "planted")))
        with pytest.raises(error):
            queues.inspect_queue(msqid)


GVISOR = """
import threading
import sysv_ipc
import fd_postproc as fp
from fd_postproc import doctor, queues
from tests.lib.random_steps import random_step
from tests.lib.sending import same
for channel in queues.CHANNEL_PATHS:
    sent = random_step(channel, 1, batch=64, cols=21 if "topk" in channel else 1)
    receiver, sender = fp.Receiver(channel, 7), fp.Sender(channel, 7, dialect="compact")
    thread = threading.Thread(target=sender.send, args=(sent, 60))
    thread.start()
    assert same(receiver.receive(60), sent)
    thread.join()
    try:
        fp.Sender(channel, 7, dialect="legacy").send(sent, 0)
        assert channel in ("plain", "spec") and same(receiver.receive(0), sent)
    except fp.MessageTooBig:
        assert "topk" in channel
    sender.send(random_step(channel, 1, batch=3, cols=1))
    assert queues.take_raw(sysv_ipc.MessageQueue(receiver.key, max_message_size=1 << 20))[1] == 2
    found = {one.code for one in doctor.examine(doctor.Scope(ids=frozenset([7]), trial=False))}
    assert "queue" in found and "limits-hidden" not in found
    receiver.remove()
print("every channel")
"""


@pytest.mark.nightly
def test_in_gvisor():
    """Debian's package runsc; .ci/nightly gets it."""
    runsc = shutil.which("runsc")
    if runsc is None:
        pytest.skip("not tried in gVisor: runsc is missing (apt-get install runsc)")
    sandbox = [runsc, "--rootless", "--ignore-cgroups", "--network=none", "--platform=ptrace", "do"]
    done = subprocess.run([*sandbox, "true"], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"not tried in gVisor: runsc does not start here: {done.stderr.strip()[-300:]}")
    done = subprocess.run([*sandbox, *python(GVISOR)], capture_output=True, text=True, timeout=PATIENCE)
    assert "every channel" in done.stdout, done.stderr
