"""``fd-postproc worker-sim``: what a Receiver gets of it, and of each fault."""

import signal
import time

import pytest

import fd_postproc as fp
from fd_postproc.cli.misbehaviour import MISHAPS
from tests.lib.commands import key_of, started, take_all
from tests.lib.waiting import PATIENCE, until


def simulate(run, queue, *arguments, channel="plain", status=0, **options):
    """Run it to its end; (what it told, a Receiver of what is in the queue)."""
    options = {"pace": 0.0001, "timeout": 20, **options}
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", value)]
    got, out, err = run("worker-sim", key_of(queue), "--channel", channel, *flags, *arguments)
    assert (got, out) == (status, ""), err
    return err, fp.Receiver(channel, key=queue.key)


def received(receiver):
    """Steps until nothing is left; and how often a message was refused."""
    steps, refused = [], []
    while True:
        try:
            step = receiver.receive(0)
        except fp.MalformedMessage as error:
            refused.append(error)
            continue
        if step is None:
            return steps, refused
        steps.append(step)


@pytest.mark.parametrize("dialect", ["packed", "legacy", "compact"])
@pytest.mark.parametrize(
    ("channel", "load"), [("plain", "3,1,1"), ("topk", "2,1,5"), ("spec", "3,2,1"), ("spec_topk", "1,2,3")]
)
def test_the_same_seed_sends_the_same_steps(raised_limits, run, queue, channel, load, dialect):
    runs = []
    for seed in (1, 1, 2):
        err, receiver = simulate(
            run, queue, channel=channel, load=load, dialect=dialect, steps=4, seed=seed, ids="7,90"
        )
        assert "4 steps in 4 messages went to the queue; 4 of them wait there." in err
        steps, refused = received(receiver)
        assert not refused
        assert all((step.dialect == "compact") is (dialect == "compact") for step in steps)
        runs.append([step.tolists() for step in steps])
        batch, accepted = map(int, load.split(",")[:2])
        assert all(step.counts == [accepted] * batch for step in steps)
        assert all(7 <= token <= 90 for step in steps for i in range(batch) for token in step.token_ids(i))
    assert len(runs[0]) == 4
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_requests_end(run, queue):
    _, receiver = simulate(run, queue, load="2,1,1", steps=6, tokens=3, end_token=200_000)
    steps, _ = received(receiver)
    assert [list(step.ids.cast("B").cast("i")).count(200_000) for step in steps] == [0, 0, 2, 0, 0, 2]


def test_a_step_lasts_as_long_as_it_is_told(queue):
    with started(
        "worker-sim", key_of(queue), "--channel", "plain", "--pace", "0.05", "--steps", "1000"
    ) as worker:
        until(lambda: queue.current_messages > 0)
        began, before = time.monotonic(), queue.current_messages
        until(lambda: queue.current_messages >= before + 4)
        assert time.monotonic() - began > 0.1
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 130
    assert "wait there" in err


def test_that_nothing_can_be_sent_is_a_failure(default_limits, run, queue):
    err, _ = simulate(run, queue, steps=3, channel="topk", load="2,1,5", status=1)
    assert "A step was lost: sending to queue" in err
    assert "raise kernel.msgmax and kernel.msgmnb to 86032" in err
    assert "3 steps lost" in err


def test_it_waits_for_room_and_for_nobody_forever(run, queue):
    queue.max_size = min(queue.max_size, 4096)
    err, _ = simulate(run, queue, steps=500, timeout=1.1, status=1)
    assert "waiting for its reader" in err
    assert "stayed full for 1.1 s" in err


def test_the_queue_is_made_only_if_asked(run, queue_key):
    name = f"key:{queue_key:#x}"
    assert run("worker-sim", name, "--channel", "plain", "--steps", "1")[0] == 1
    assert run("worker-sim", name, "--channel", "plain", "--steps", "1", "--create")[0] == 0
    with fp.Receiver("plain", key=queue_key) as receiver:
        assert receiver.receive(0).batch == 8


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        ([], 2, "--channel is needed"),
        (["--channel", "plain", "--tokens", "4"], 2, "--tokens and --end-token go together"),
        (["--channel", "plain", "--seconds", "4"], 2, "--seconds goes with --fault silence"),
        (["--channel", "plain", "--load", "1,1,2"], 2, "COLUMNS must be 1, not 2"),
        (["--channel", "plain", "--load", "513,1,1"], 1, "batch is 513, at most 512 fit"),
        (["--channel", "plain", "--ids", "7,5"], 2, "from FIRST up to LAST"),
        (["--channel", "plain", "--fault", "sulking"], 2, "sulking"),
        (["--channel", "plain", "--fault", "death-in-frame"], 1, "one message of 40 bytes"),
        (["--channel", "plain", "--fault", "drift", "--full-speed"], 1, "leave --full-speed out"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_sent(run, queue, arguments, status, why):
    got, _, err = run("worker-sim", key_of(queue), *arguments)
    assert got == status
    assert why in err
    assert queue.current_messages == 0


def test_every_fault_has_a_test():
    names = {name.removeprefix("test_fault_") for name in globals() if name.startswith("test_fault_")}
    assert names == {name.replace("-", "_") for name in MISHAPS}


def test_fault_silence(run, queue):
    began = time.monotonic()
    _, receiver = simulate(run, queue, fault="silence", at=2, seconds=0.4, steps=5)
    assert time.monotonic() - began >= 0.4
    assert len(received(receiver)[0]) == 5


def test_fault_drift(run, queue):
    began = time.monotonic()
    simulate(run, queue, fault="drift", at=1, steps=200)
    assert time.monotonic() - began > 0.0001 * 1.02**199  # the last pause alone; 4 ms


def test_fault_burst(run, queue):
    began = time.monotonic()
    _, receiver = simulate(run, queue, fault="burst", at=1, times=100, steps=3, pace=0.5)
    assert time.monotonic() - began < 50
    assert len(received(receiver)[0]) == 103


def test_fault_death(queue):
    with started(
        "worker-sim", key_of(queue), "--channel", "plain", "--fault", "death", "--at", "3"
    ) as worker:
        assert worker.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert len(received(fp.Receiver("plain", key=queue.key))[0]) == 3


def test_fault_death_in_frame(default_limits, queue):
    default_limits("msgmnb", 1 << 20)
    queue.max_size = 16384
    frame = ["--channel", "topk", "--load", "64,1,21", "--dialect", "compact"]
    with started("worker-sim", key_of(queue), *frame, "--fault", "death-in-frame", "--at", "1") as worker:
        receiver = fp.Receiver("topk", key=queue.key)
        assert receiver.receive(20).batch == 64
        assert worker.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert received(receiver) == ([], [])
    assert receiver.stats["fragments"] == 3


@pytest.mark.parametrize(
    ("fault", "numbers"),
    [
        ("restart", [0, 1, 0, 1]),
        ("lost", [0, 1, 3, 4]),
        ("doubled", [0, 1, 2, 2, 3, 4]),
        ("reordered", [0, 1, 3, 2, 4, 5]),
    ],
)
def test_faults_of_the_sequence(run, queue, fault, numbers):
    _, receiver = simulate(run, queue, fault=fault, at=2, steps=4, dialect="compact")
    assert [step.seq for step in received(receiver)[0]] == numbers


test_fault_restart = test_fault_lost = test_fault_doubled = test_fault_reordered = None


@pytest.mark.parametrize("dialect", ["packed", "compact"])
@pytest.mark.parametrize(
    ("channel", "load"), [("plain", "3,1,1"), ("topk", "2,1,5"), ("spec", "3,2,1"), ("spec_topk", "1,2,3")]
)
def test_fault_malformed(raised_limits, run, queue, channel, load, dialect):
    _, receiver = simulate(
        run, queue, fault="malformed", at=2, steps=4, dialect=dialect, channel=channel, load=load
    )
    steps, refused = received(receiver)
    assert len(steps) == 4
    assert len(refused) == 5
    assert refused[-1].field == "mtype"


def test_fault_corrupt(run, queue):
    _, receiver = simulate(run, queue, fault="corrupt", at=2, steps=4, dialect="compact")
    steps, refused = received(receiver)
    assert (len(steps), [error.field for error in refused]) == (4, ["checksum"])
    _, receiver = simulate(run, queue, fault="corrupt", at=2, steps=4)
    assert len(received(receiver)[0]) == 5  # FastDeploy's messages have no checksum


def test_fault_other_build(default_limits, run, queue):
    default_limits("msgmax", 1 << 20)
    default_limits("msgmnb", 1 << 20)
    queue.max_size = 1 << 20
    _, receiver = simulate(run, queue, fault="other-build", at=2, steps=4)
    steps, refused = received(receiver)
    assert (len(steps), [error.field for error in refused]) == (2, ["length"] * 2)
    assert "another FastDeploy build" in str(refused[0])


def test_fault_full_size(default_limits, run, queue):
    default_limits("msgmax", 8192)
    queue.max_size = 16384
    given = {
        "fault": "full-size",
        "at": 2,
        "steps": 4,
        "channel": "topk",
        "load": "1,1,5",
        "dialect": "compact",
    }
    err, receiver = simulate(run, queue, **given)
    assert "A step was lost: a message of 88,072 bytes was refused: one may have 8,192" in err
    assert "2 steps lost: too long." in err
    assert len(received(receiver)[0]) == 2
    default_limits("msgmax", 1 << 20)
    default_limits("msgmnb", 1 << 20)
    queue.max_size = 1 << 20
    err, receiver = simulate(run, queue, **given)
    assert "A step was lost" not in err
    assert len(received(receiver)[0]) == 4


def test_fault_lowered_limit(run, queue):
    err, receiver = simulate(run, queue, fault="lowered-limit", at=1, steps=4, load="100,1,1")
    assert "3 steps lost: too long." in err
    assert len(received(receiver)[0]) == 1


def test_fault_removed(queue_key):
    receiver = fp.Receiver("plain", key=queue_key)
    name = f"key:{queue_key:#x}"
    with started(
        "worker-sim", name, "--channel", "plain", "--fault", "removed", "--at", "2", "--steps", "4"
    ) as (worker):
        assert [receiver.receive(20).batch for _ in range(2)] == [8, 8]
        with pytest.raises(fp.QueueRemoved):
            receiver.receive(20)
        with fp.Receiver("plain", key=queue_key) as again:
            assert [again.receive(20).batch for _ in range(2)] == [8, 8]
        _, err = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0
    assert "waiting for its reader to make a new one" in err


def test_the_recorder_takes_what_it_sends(run, queue, tmp_path):
    simulate(run, queue, steps=3, channel="topk", load="2,1,5", dialect="compact")
    assert run("record", key_of(queue), tmp_path / "a.fdrec", "--count", 3, "--channel", "topk")[0] == 0
    status, out, _ = run("inspect", tmp_path / "a.fdrec")
    assert status == 0
    assert "topk" in out
    assert take_all(queue) == []
