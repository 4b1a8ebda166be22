"""``fd-postproc bench``: it measures right answers only, says what it cannot, and leaves nothing behind."""

import json
import os
import subprocess

import pytest

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli import rates, side_by_side, workload
from fd_postproc.cli.terminal import CommandError
from fd_postproc.needed_limits import Load
from tests.lib.children import FD_POSTPROC
from tests.lib.commands import flat

SHORT = ("--seconds", "0.001")


def as_without_fastdeploy():
    """The environment and nothing of the tests on the import path."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FD_POSTPROC_"))
    }


def test_it_measures_and_says_why_nothing_is_compared(own_namespace, tmp_path):
    done = subprocess.run(
        [FD_POSTPROC, "bench", *SHORT, "--batch", "1", "200", "--json", "here.json"],
        cwd=tmp_path,
        env=as_without_fastdeploy(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "python -m benchmarks" in flat(done.stdout)
    told = json.loads((tmp_path / "here.json").read_text())
    assert [(rate["what"][:4], rate["batch"]) for rate in told["rates"]] == [
        (what, batch) for what in ("save", "rece", "deco", "step") for batch in (1, 200)
    ]
    assert all(0 < rate["low"] <= rate["seconds"] <= rate["high"] < 1 for rate in told["rates"])
    assert told["load_average"] >= 0
    assert "Load average" in done.stdout
    assert told["fd_postproc"] == fp.__version__
    assert (told["channel"], told["accepted"], told["columns"]) == ("spec_topk", 2, 21)
    assert told["token_processors"]["why_not"] in flat(done.stdout)
    if own_namespace:
        assert queues.list_queues() == []


@pytest.mark.parametrize(
    "channel",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("plain", "topk", "spec")),
        "spec_topk",
    ],
)
def test_both_classes_do_the_same_and_are_timed(run, tmp_path, channel):
    """On the double's class here; on FastDeploy's own in `plugin/real_tree`."""
    status, out, err = run("bench", *SHORT, "--batch", "3", "--channel", channel, "--json", tmp_path / "told")
    assert status == 0, err
    told = json.loads((tmp_path / "told").read_text())["token_processors"]
    assert set(told) == {"from", "steps"}, told
    (step,) = told["steps"]
    whose = {side_by_side.STOCK, side_by_side.OURS, side_by_side.READ}
    assert set(step["seconds"]) == whose - ({side_by_side.READ} if "topk" not in channel else set())
    assert set(step["spread"]) == set(step["seconds"])
    assert all(low <= step["seconds"][name] <= high for name, (low, high) in step["spread"].items())
    assert "times as fast" in out
    assert "results were equal" in flat(out)


@pytest.mark.parametrize(
    ("load", "is_wide", "busy"),
    [
        pytest.param(0.0, False, False, marks=pytest.mark.nightly),
        (50.0, False, True),
        pytest.param(0.0, True, True, marks=pytest.mark.nightly),
    ],
)
def test_a_busy_machine_is_told_before_and_after(run, monkeypatch, load, is_wide, busy):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(rates.Spread, "is_wide", property(lambda self: is_wide))
    status, out, err = run("bench", *SHORT, "--batch", "1", "--channel", "plain")
    assert status == 0
    assert ("BUSY: repeat" in out) is busy
    assert ("load average 50.0 on" in err) is (load > 0)
    assert f"Load average {load:.1f} before it" in flat(out)


def test_the_spread_is_the_middle_half():
    assert rates.Spread.of([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0, 4.0)
    assert not rates.Spread(3.0, 2.9, 3.8).is_wide
    assert rates.Spread(3.0, 2.0, 4.0).is_wide


def test_what_cannot_be_carried_is_told(run):
    assert run("bench", "--channel", "plain", "--columns", "2")[0] == 2
    assert run("bench", "--channel", "topk", "--accepted", "2")[0] == 2
    status, out, err = run("bench", "--batch", "600")
    assert (status, out) == (1, "")
    assert "600" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_wrong_answer_is_not_timed():
    """The second process makes the right step; ours is another one."""
    load = Load(2, 1, 1)
    other = workload.synthetic_step("spec", 2, 1, 1, seed=1)
    with pytest.raises(CommandError, match="not the one that was sent"):
        rates._queue(other, load, 0.001)
    with pytest.raises(CommandError, match="not the one that was saved"):
        rates._save(other, load, 0.2)


def test_the_end_of_the_second_process_is_told(monkeypatch, own_namespace):
    monkeypatch.setattr(rates, "python_command", lambda *_: ["false"])
    with pytest.raises(CommandError, match="second process has ended"):
        rates._queue(workload.synthetic_step("spec", 2, 1, 1), Load(2, 1, 1), 0.001)
    if own_namespace:
        assert queues.list_queues() == []


def test_the_saves_settings_are_those_of_before(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed")
    before = dict(os.environ)
    rates._save(workload.synthetic_step("topk", 2, 1, 3), Load(2, 1, 3), 0.001)
    assert dict(os.environ) == before


def test_results_that_differ_are_not_timed():
    assert side_by_side._first_difference(*map(Side, (1, 2))) == "[0], n: 1 is expected, ours is 2"
    assert side_by_side._first_difference(*map(Side, (1, 1))) is None


class Side:
    """What is asked of a side: a step, and its results."""

    def __init__(self, number):
        self.results = []
        self.number = number

    def step(self):
        self.results = [self]

    def to_dict(self):
        return {"n": self.number}
