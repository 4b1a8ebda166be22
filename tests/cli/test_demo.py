"""``fd-postproc demo``: recorded messages, in real terminals and processes."""

import os
import re
import signal
from unittest.mock import Mock

import pytest

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli import demo
from fd_postproc.cli.terminal import CommandError
from tests.lib.commands import flat, started
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE, until


def test_every_message_arrives_and_what_it_gains_is_told(run, own_namespace):
    status, out, err = run("demo", "--repeat", "2")
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "22 of 22 messages as FastDeploy sends them, 3 times" in flat(out)
    assert "530,448 bytes for it, fd_postproc 89,152" in flat(out)
    assert re.search(r"\d+ times as fast", flat(out))
    if own_namespace:
        assert "in 11 pieces" in flat(out)
        assert queues.list_queues() == []


def test_demo_notices_a_step_that_arrives_different(run, monkeypatch):
    items = list(demo.recorded_items())

    def tampered():
        for item in items:
            if item.name == "plain 1":
                item = item._replace(step=fp.Step.from_arrays("plain", item.step.counts, [1, 2, 3]))
            yield item

    monkeypatch.setattr(demo, "recorded_items", tampered)  # the sender is another process
    status, out, err = run("demo", "--repeat", "1")
    assert (status, out) == (1, "")
    assert "2 messages arrived different" in err
    assert "plain 1" in err


def test_results_that_differ_are_not_timed(monkeypatch):
    results = demo._stock_results(demo.example_item().step)()
    results[7].top_logprobs[1][0][20] += 1
    monkeypatch.setattr(demo, "_stock_results", lambda step: lambda: results)
    with pytest.raises(CommandError, match="restated, are not those of the step that arrived"):
        demo._gains(demo.example_item().step, 0)


def test_that_there_may_be_no_more_queues_is_no_full_disk(run, monkeypatch):
    monkeypatch.setattr(demo.sysv_ipc, "MessageQueue", Mock(side_effect=OSError))
    status, _, err = run("demo")
    assert (status, "kernel.msgmni" in err, "standard output" in err) == (1, True, False)


LONG = ("demo", "--repeat", "100000000")


def sender_of(process):
    """The pid of the sender, once it has sent something."""

    def busy():
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            children = file.read().split()
        sent = [queue for queue in queues.list_queues() if str(queue.last_sender) in children]
        return sent[0] if sent else None

    return until(busy)


def gone(queue):
    return all(other.msqid != queue.msqid for other in queues.list_queues())


@pytest.mark.realtime
@each(
    "number, status, said",
    [(signal.SIGKILL, 1, "the sender process was ended by signal 9"), (signal.SIGTERM, 143, "")],
)
def test_demo_removes_its_queue_when_it_is_stopped_or_its_sender_dies(own_namespace, number, status, said):
    with started(*LONG) as process:
        queue = sender_of(process)
        assert queue.mode == 0o600
        os.kill(queue.last_sender if said else process.pid, number)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status
        assert said in err
        assert len(err.splitlines()) == bool(said)
        assert gone(queue)


@pytest.mark.realtime
def test_the_sender_removes_the_queue_when_the_demo_is_killed(own_namespace):
    with started(*LONG) as process:
        queue = sender_of(process)
        process.kill()
        until(lambda: gone(queue))
        until(lambda: not os.path.exists(f"/proc/{queue.last_sender}/fd/0"))
