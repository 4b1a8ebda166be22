"""Tables of the comparison with other engines, from the recorded results."""

import json
import subprocess
import sys
from types import MappingProxyType

import pytest

from benchmarks.pages import fill
from benchmarks.peers import picture, results, turns
from benchmarks.peers.load import Load
from tests.lib.paths import ROOT


def cells(table):
    """Rows of a Markdown table by the text of their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {head.strip("*"): row for head, *row in rows}


@pytest.mark.parametrize("texts", [False, True])
def test_each_measured_cost_stands_in_its_cell(texts):
    whole = results.load()
    table = cells(results.steps_table(whole, texts))
    heads = table.pop("way")
    found = {
        (name, heads[place]): cell
        for name, row in table.items()
        for place, cell in enumerate(row)
        if not cell.startswith("-")
    }
    rows = [row for row in results.steps(whole) if row["load"]["texts"] == texts]
    assert len(rows) > 30
    for row in rows:
        head = f"{results.TOPS[row['load']['top']]}, {row['load']['streams']}"
        assert float(found[row["contender"], head].replace(",", "")) == pytest.approx(row["us"], rel=0.006)


@pytest.mark.parametrize("texts", [False, True])
def test_the_picture_has_the_tables_figures_and_their_spread(texts):
    whole = results.load()
    drawn = dict(picture.points(whole, texts))
    found = [row for row in results.steps(whole) if row["load"]["texts"] == texts and "us" in row]
    found = [row for row in found if row["load"]["streams"] == picture.STREAMS]
    assert sum(map(len, drawn.values())) == len(found) > 15
    for row in found:
        low, us, high = drawn[row["contender"]][row["load"]["top"]]
        assert us == row["us"]
        assert (high - low) / us == pytest.approx(row["spread"], abs=0.002)


def test_an_engine_that_is_left_out_says_why_and_costs_no_other_its_row(tmp_path):
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    results.save("vllm", results.load()["vllm"], file)
    results.save("sglang", {"left out": "no wheel"}, file)
    blocks = results.blocks(results.load(file))
    assert "no wheel" in blocks["versions"]
    assert "vLLM" in blocks["short"]
    assert set(cells(blocks["texts"])) > {"vLLM"}
    page.write_text("before\n<!-- peers:short -->\nold\n<!-- /peers -->\nafter\n")
    fill(page, "peers", blocks)
    assert page.read_text().splitlines()[-1] == "after"
    assert "old" not in page.read_text()
    assert blocks["short"] in page.read_text()


class Machine:
    """A clock for passes: everything takes `slow` times as long, which changes from round to round."""

    costs = MappingProxyType({"first": 0.010, "second": 0.020, "third": 0.020})

    def __init__(self, noise):
        self.noise, self.asked = noise, []

    def __call__(self, name):
        slow = self.noise[len(self.asked) % len(self.noise)]
        self.asked.append(name)
        return {"seconds": self.costs[name] * slow, "work": 0.005 * slow}


@pytest.mark.parametrize("noise", [[1.0], [1.0, 1.3, 4.0, 0.7, 2.0, 2.0, 1.1]])
def test_a_machine_that_is_slow_now_and_then_decides_nothing(noise):
    machine = Machine(noise)
    told = turns.take_turns(Machine.costs, machine)
    summed = turns.summed_up(told, 10)
    assert [one["us"] / summed["first"]["us"] for one in summed.values()] == pytest.approx([1, 2, 2])
    assert max(one["spread"] for one in summed.values()) == pytest.approx(0)
    rounds = [machine.asked[n : n + 3] for n in range(0, len(machine.asked), 3)]
    assert len(rounds) == turns.PASSES >= 9
    assert all(sorted(one) == sorted(Machine.costs) for one in rounds)
    assert len({*map(tuple, rounds)}) > 3  # nobody is always first


def test_what_slows_a_part_of_a_pass_slows_the_work_beside_it(monkeypatch):
    """Slices of a fast and of a slow machine, in turns and unlike long: the ratio is that of a fast one."""
    now, slow = [0.0], [1.0]
    monkeypatch.setattr(turns.time, "process_time", lambda: now[0])

    def step():
        now[0] += 0.005 * slow[0]

    def work():
        return 0.001 * slow[0]

    def steps():
        for number in range(20):
            slow[0] = 3.0 if 3 <= number % 10 < 9 else 1.0
            yield step

    even, uneven = turns.timed([step] * 20, work), turns.timed(steps(), work)
    assert even["seconds"] / even["work"] == pytest.approx(5)
    assert uneven["seconds"] == pytest.approx(0.005 * (8 + 12 * 3) / 20)
    assert uneven["seconds"] / uneven["work"] == pytest.approx(5, rel=0.2)


def test_a_pass_in_which_something_else_ran_is_seen_in_the_spread():
    passes = [{"seconds": 0.01 * (3 if number in (2, 5, 7) else 1), "work": 0.005} for number in range(9)]
    summed = turns.summed_up({"one": passes}, 10)["one"]
    assert summed["us"] == pytest.approx(1000)
    assert summed["spread"] == pytest.approx(2)
    assert summed["passes"][2] == pytest.approx(3000)


ENGINE = """
from benchmarks.peers.clock import Contender
from benchmarks.peers.load import Answer

PACKAGES = ("pip", "no-such-package")

def load_engine():
    print("a library's own words")

def contenders(load, model, fast):
    def make(wrong):
        def step(message):
            return [[number + wrong for number in row] for row in message.ids.tolist()]
        def answers(rows):
            return [Answer([one[0] for one in rows[n * load.accepted:(n + 1) * load.accepted]], None, None)
                    for n in range(load.streams)]
        return Contender(lambda message: message, lambda: None, step, answers)
    return {"right": lambda: make(0), "wrong": lambda: make(1), "ends": lambda: 1 / 0}
"""


def test_contenders_wait_in_processes_of_their_own(tmp_path):
    """What each has to say, its passes in any order, and one that is wrong beside them."""
    engine = tmp_path / "of_test.py"
    engine.write_text(ENGINE)
    code = (
        "import importlib.util, sys; from benchmarks.peers import play; "
        f"spec = importlib.util.spec_from_file_location('benchmarks.peers.of_test', {str(engine)!r}); "
        "module = importlib.util.module_from_spec(spec); sys.modules[spec.name] = module; "
        "spec.loader.exec_module(module); sys.argv = ['play', 'test']; sys.exit(play.main())"
    )
    load = Load(2, 2, None, False)
    asked = [
        {"begin": load.as_json(), "options": {"fast": True}}, {"pass": "right"}, {"pass": "right"},
        {"end": True}, {"versions": True},
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True,
        input="".join(f"{json.dumps(one)}\n" for one in asked),
    )  # fmt: skip
    ready, first, second, ended, versions = map(json.loads, done.stdout.splitlines())
    assert "WrongAnswer" in ready["wrong"]["left out"]
    assert "ZeroDivisionError" in ready["ends"]["left out"]
    assert min(*first.values(), *second.values()) > 0
    assert ended.keys() == {"right"}
    assert ended["right"]["steps"] == ready["right"]["steps"] > 0
    assert versions.keys() == {"pip"}
