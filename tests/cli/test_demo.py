"""``fd-postproc demo``: recorded messages, in real terminals and processes."""

import os
import re
import signal

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli import demo, restated
from tests.lib.commands import flat, started
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE, until


def test_it_is_fifteen_lines_and_tells_what_it_gains(run, own_namespace):
    status, out, err = run("demo", "--repeat", "2")
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert len(lines) <= 15
    assert [word for word in ("carried", "a step", "smaller", "faster", "unfair", "next")
            if any(line.startswith(word) for line in lines)] == [
        "carried", "a step", "smaller", "faster", "unfair", "next"]  # fmt: skip
    assert "22 of 22 messages as FastDeploy sends them, 3 times" in flat(out)
    assert "FastDeploy sends 530,448 bytes for it, fd_postproc 89,152" in flat(out)
    assert int(re.search(r"(\d+) times as fast, measured here and now", flat(out))[1]) >= 2
    if own_namespace:
        assert "in 11 pieces that fit this machine's limit" in flat(out)
        assert queues.list_queues() == []


def test_messages_go_whole_under_raised_limits(raised_limits, run):
    status, out, _ = run("demo", "--repeat", "2")
    assert status == 0
    assert "22 of 22 messages" in out
    assert "fd_postproc 89,152, whole" in flat(out)
    assert queues.list_queues() == []


@each("item", [one for one in demo.recorded_items() if one.step.scores is not None])  # fmt: skip
def test_the_log_probabilities_make_sense_to_a_reader(item):
    """Sorted, with a sum of at most 1, and the sampled token where its rank says."""
    ids, scores, ranks = (np.asarray(part) for part in (item.step.ids, item.step.scores, item.step.ranks))
    known = ranks > 0
    assert known.any() or not item.step.rows
    for token, row, rank in zip(ids[known], scores[known], ranks[known], strict=True):
        rest = row[1:]
        assert (row <= 0).all()
        assert (np.diff(rest) <= 0).all()
        assert np.exp(rest).sum() < 1 + 1e-5
        if rank < len(row):
            assert (token[rank], row[rank]) == (token[0], row[0])
        elif len(rest):
            assert row[0] < rest[-1]


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


def test_results_that_differ_are_not_timed(run, monkeypatch):
    real = restated.results_of

    def wrong(*arguments):
        results = real(*arguments)
        results[7].top_logprobs[1][0][20] += 1
        return results

    monkeypatch.setattr(restated, "results_of", wrong)
    status, out, err = run("demo", "--repeat", "1")
    assert (status, out) == (1, "")
    assert "restated, are not those of the step that arrived" in err


def test_a_narrow_screen_without_utf8_loses_no_number():
    environment = {**os.environ, "COLUMNS": "40", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    with started("demo", "--repeat", "1", env=environment) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 40
    assert {"530,448", "89,152,"} <= set(out.split())


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
def test_demo_ends_when_its_sender_dies(own_namespace):
    with started(*LONG) as process:
        queue = sender_of(process)
        os.kill(queue.last_sender, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "the sender process was ended by signal 9" in err
        assert len(err.splitlines()) == 1
        assert gone(queue)


@pytest.mark.realtime
@each(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
    ],
)
def test_demo_removes_its_queue_when_it_is_stopped(own_namespace, number, status):
    with started(*LONG) as process:
        queue = sender_of(process)
        assert queue.mode == 0o600
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status
        assert err == ""
        assert gone(queue)


@pytest.mark.realtime
def test_the_sender_removes_the_queue_when_the_demo_is_killed(own_namespace):
    with started(*LONG) as process:
        queue = sender_of(process)
        process.kill()
        until(lambda: gone(queue))
        until(lambda: not os.path.exists(f"/proc/{queue.last_sender}/fd/0"))
