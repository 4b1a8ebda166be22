"""``fd-postproc demo``: recorded messages, in real terminals and processes."""

import contextlib
import os
import re
import signal
from dataclasses import replace

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli import transfer, workload
from tests.lib.commands import all_from, at_terminal, flat, started
from tests.lib.waiting import PATIENCE, until


def test_demo_carries_everything_under_the_default_limits(run, own_namespace):
    status, out, err = run("demo", "--all", "--repeat", "3")
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "every one arrived equal" in flat(out)
    assert re.search(r"spec_topk 6 .*-9 preempted|-9 preempted", out)
    assert "messages  " in out
    assert " per second" in out
    if own_namespace:
        assert "22 of 22 messages" in out
        assert "6 of them were sent as compact frames" in flat(out)
        assert len(re.findall("one message ", out)) == 16 + 1
        assert "compact, 13 pieces" in out
        assert "kernel.msgmax=266252" in out


def test_demo_carries_everything_under_raised_limits(raised_limits, run):
    status, out, _ = run("demo", "--all", "--repeat", "2")
    assert status == 0
    assert "22 of 22 messages" in out
    assert "compact" not in out
    assert queues.list_queues() == []


def test_the_first_screen_is_fifteen_lines_and_tells_what_it_gains(run, own_namespace):
    status, out, err = run("demo", "--repeat", "2")
    assert (status, err) == (0, "")
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


def test_the_tables_options_need_the_tables(run):
    for option in ("--rows", "--top", "--pace"):
        status, _, err = run("demo", option, "2")
        assert status == 2
        assert "--all shows" in err


@pytest.mark.parametrize("item", [one for one in workload.recorded_items() if one.step.scores is not None],
                         ids=lambda item: item.name)  # fmt: skip
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


def test_demo_shows_the_recorded_numbers(run):
    _, out, _ = run("demo", "--all", "--repeat", "1", "--rows", "3", "--top", "1")
    step = next(item.step for item in workload.recorded_items() if item.name == "spec_topk 3")
    view = step.logprobs(0)
    ids, scores, ranks = view.tolists()
    line = next(line for line in out.splitlines() if line.strip().startswith("spec_topk 3"))
    assert line.split() == [
        *("spec_topk", "3", "0", str(view.rows), str(ids[0][0]), str(ranks[0]), f"{scores[0][0]:.3f}"),
        f"{ids[0][1]}:{scores[0][1]:.2f}",
    ]


def test_demo_notices_a_step_that_arrives_different(run, monkeypatch):
    items = list(workload.recorded_items())

    def tampered():
        for item in items:
            if item.name == "plain 1":
                item = replace(item, step=fp.Step.from_arrays("plain", item.step.counts, [1, 2, 3]))
            yield item

    monkeypatch.setattr(workload, "recorded_items", tampered)  # the sender is another process
    status, out, err = run("demo", "--all", "--repeat", "1")
    assert status == 1
    assert out.count("DIFFERENT") == 1
    assert "2 messages arrived different" in err
    assert "plain 1" in err


LONG = ("demo", "--repeat", "100000000")


def sender_of(demo):
    """The pid of the sender, once it has sent something."""

    def busy():
        with open(f"/proc/{demo.pid}/task/{demo.pid}/children") as file:
            children = file.read().split()
        sent = [queue for queue in queues.list_queues() if str(queue.last_sender) in children]
        return sent[0] if sent else None

    return until(busy)


def gone(queue):
    return all(other.msqid != queue.msqid for other in queues.list_queues())


def test_demo_ends_when_its_sender_dies(own_namespace):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        os.kill(queue.last_sender, signal.SIGKILL)
        _, err = demo.communicate(timeout=PATIENCE)
        assert demo.returncode == 1
        assert "the sender process was ended by signal 9" in err
        assert len(err.splitlines()) == 1
        assert gone(queue)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.nightly),
    ],
)
def test_demo_removes_its_queue_when_it_is_stopped(own_namespace, number, status):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        assert queue.mode == 0o600
        demo.send_signal(number)
        _, err = demo.communicate(timeout=PATIENCE)
        assert demo.returncode == status
        assert "Traceback" not in err
        assert gone(queue)


def test_a_signal_while_the_sender_is_looked_after_never_hangs_its_end(own_namespace):
    """Popen.poll(), interrupted right after it took its lock, leaves it held: wait() would not return."""

    class Interrupted(BaseException):
        pass

    def interrupt(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with contextlib.ExitStack() as stack:
            receivers = stack.enter_context(transfer.private_queues(["spec_topk"]))
            keys = {"spec_topk": receivers["spec_topk"].key}
            sender = transfer.SenderProcess({"keys": keys, "limit": 8192, "pause": 60, "repeat": 0})
            for number in range(300):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6 + number * 1e-6)
                    while not sender.ended:
                        pass
            signal.setitimer(signal.ITIMER_REAL, 10)  # it must not come to that
            sender.__exit__(Interrupted, None, None)
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert sender.ended
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_sender_removes_the_queue_when_the_demo_is_killed(own_namespace):
    with started(*LONG) as demo:
        queue = sender_of(demo)
        demo.kill()
        until(lambda: gone(queue))
        until(lambda: not os.path.exists(f"/proc/{queue.last_sender}/fd/0"))


def in_terminal(*arguments, env=None, **options):
    """What a command writes to a terminal."""
    environment = {**os.environ, "TERM": "xterm", **(env or {})}
    environment.pop("COLUMNS", None)
    with at_terminal(*arguments, env=environment, **options) as (leader, status):
        seen = all_from(leader)
        assert status() == 0
    return seen.decode()


def test_a_terminal_gets_a_live_table_and_then_the_final_ones():
    seen = in_terminal("demo", "--all", "--pace", "0.001", "--repeat", "1")
    assert seen.count("\x1b[2K") > 16  # lines drawn anew
    assert "times as fast" in flat(seen[seen.rindex("\x1b[2K") :])


def test_a_narrow_terminal_without_utf8_loses_no_number():
    seen = in_terminal(
        "demo",
        "--all",
        "--pace",
        "0.001",
        "--repeat",
        "1",
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "NO_COLOR": "1"},
        size=(24, 50),
        forked=False,  # what stdout can encode is settled when Python starts
    )
    assert seen.isascii()
    final = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen[seen.rindex("\x1b[2K") :])
    assert "530" in final
    assert "arrived equal" in flat(final)
    assert "Traceback" not in seen


def test_a_closed_pipe_is_quiet():
    with started("demo", "--repeat", "1") as demo:
        demo.stdout.close()
        demo.stdout = None
        _, err = demo.communicate(timeout=PATIENCE)
    assert err == ""
    assert demo.returncode == 1
