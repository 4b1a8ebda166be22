"""`python -m tools.accept`: what it takes as new, what it writes, and when it gives up."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fd_postproc.fastdeploy.gate.record import joined, packed, signs_of, unpacked
from fd_postproc.fastdeploy.gate.seams import SEAMS
from fd_postproc.fastdeploy.gate.statements import statements
from tests.lib.rows import each
from tools.accept import accepting, reading, virtual_time
from tools.accept.__main__ import RECORD, main

ROOT = Path(__file__).resolve().parents[3]
FUNCTION = """def ids2tokens(self, token_id, task_id):
    if self.tokenizer:
        for one in token_id:
            self.decode_status.append(one)
            self.tokenizer.decode_token(one)
    else:
        self.decode_status.extend(token_id)
    return len(token_id)
"""
APPEND, EXTEND = (
    "            self.decode_status.append(one)\n",
    "        self.decode_status.extend(token_id)\n",
)
CALL, END = "            self.tokenizer.decode_token(one)\n", "    return"
CHANGES = {  # to what is shown: first and last line
    "nothing": ("", "", []),
    "one more": (APPEND, APPEND + "            len(one)\n", [(5, 5)]),
    "one more, first": ("    if self.tok", "    len(token_id)\n    if self.tok", [(2, 2)]),
    "two more": (EXTEND, EXTEND + "        len(self)\n        len(token_id)\n", [(8, 8), (9, 9)]),
    "two more, apart": (
        APPEND,
        "            len(one)\n" + APPEND + "            len(self)\n",
        [(4, 4), (6, 6)],
    ),
    "one twice": (APPEND, APPEND * 2, [(5, 5)]),
    "one changed, whose neighbour may be the new one": ("append(one)", "append(self)", [(4, 4), (5, 5)]),
    "a condition": ("for one in token_id", "for one in task_id", [(3, 5)]),
    "a block": (END, "    with self:\n        len(self)\n" + END, [(8, 9)]),
    "one less": (APPEND, "", [(4, 4)]),
    "the last one less": (CALL, "", [(4, 4)]),
    "a parameter": ("task_id)", "task_id=0)", [(1, 8)]),
}


@each("change", CHANGES)
def test_what_is_shown_is_what_changed(change):
    before, after, lines = CHANGES[change]
    known = {one.digest for one in statements(ast.parse(FUNCTION).body[0])}
    assert reading.new_lines(ast.parse(FUNCTION.replace(before, after, 1)).body[0], known) == lines


@pytest.fixture
def tree(tmp_path):
    """A source tree with one of FastDeploy's functions."""
    file = tmp_path / "tree" / "fastdeploy" / "input" / "base_processor.py"
    file.parent.mkdir(parents=True)
    for folder in (file.parent, file.parents[1]):
        (folder / "__init__.py").touch()
    write(file, FUNCTION)
    return file.parents[2]


def write(file, function):
    file.write_text(
        f"class BaseTextProcessor:\n{''.join(f'    {line}' for line in function.splitlines(True))}"
    )


def recorded(tree):
    """All of a tree's statements and data, as a file of the operator's has them."""
    told = {
        seam: {
            reading.MARK + place.removeprefix(reading.MARK): {digest: ""} for place, digest in places.items()
        }
        for seam, places in reading.data(tree).items()
    }
    for one in reading.functions(tree, {}):
        told.setdefault(one.seam, {})[one.name] = {each.digest: "" for each in one.statements}
    return told


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tools.accept", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_new_statement_is_shown_alone_and_added_to_the_file(tree, tmp_path):
    file, record = tree / "fastdeploy/input/base_processor.py", tmp_path / "own.json"
    before = recorded(tree)
    record.write_text(json.dumps(packed(before)))
    write(file, FUNCTION.replace(APPEND, APPEND + "            len(one)\n"))
    done = run("--show", "--record", record, tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if str(file) in line] == [
        f"{file}:6: len(one)    [BaseTextProcessor.ids2tokens]"
    ]
    package, after = json.loads(RECORD.read_text()), json.loads(record.read_text())
    assert after.keys() <= before.keys()  # the file adds to the package's record, it is no copy
    known = joined(unpacked(package), unpacked(after))
    assert joined(known, before) == known
    assert not accepting.new_in(tree, known, reading.functions(tree, known)).parts


def test_nothing_is_written_where_every_statement_is_known(tree, tmp_path, monkeypatch):
    record = tmp_path / "package.json"
    record.write_text(json.dumps(packed(recorded(tree))))
    monkeypatch.setattr("tools.accept.__main__.RECORD", record)
    before = record.read_bytes()
    assert main([str(tree), "--record", str(record)]) == 0
    assert record.read_bytes() == before


def test_what_is_read_and_uses_new_names_is_refused(tree, tmp_path):
    record = tmp_path / "own.json"
    record.write_text(json.dumps(packed(recorded(tree))))
    before = record.read_bytes()
    write(
        tree / "fastdeploy/input/base_processor.py",
        FUNCTION.replace(APPEND, APPEND + "            self.called = 1\n"),
    )
    done = run("--record", record, tree)
    assert done.returncode == 1
    assert "called" in done.stdout
    assert record.read_bytes() == before


def test_what_is_accepted_of_the_processor_says_which_version_it_is_of(tree, monkeypatch):
    """Else the gate, which reads the record, finds that it tells no version."""
    facts = SEAMS[reading.PROCESSOR].facts
    mark = "".join("+-"[number % 2] for number, _ in enumerate(facts))
    file = tree / "fastdeploy/output/token_processor.py"
    file.parent.mkdir()
    file.write_text("class TokenProcessor:\n    def healthy(self):\n        return 5\n")
    found = reading.functions(tree, {})
    new = accepting.new_in(tree, {}, found)
    told = {"facts": {"mark": mark}, "parts": dict.fromkeys(new.parts, "")}
    monkeypatch.setattr(accepting, "_in_a_fork", lambda *_: told)
    record = accepting.accepted(tree, {}, found, new, 1, None).record
    marks = {*record[reading.PROCESSOR]["TokenProcessor.healthy"].values()}
    assert marks == {mark}
    assert [*signs_of(marks, facts).values()] == [{one} for one in mark]
    assert {*record["api detokenising"]["BaseTextProcessor.ids2tokens"].values()} == {""}
    assert reading.PROCESSOR not in accepting.new_in(tree, record, found).parts


@each(
    "arguments, named",
    [
        ((), "TREE"),
        (("--record", "{tmp}/no/own.json", "{tree}"), "{tmp}/no"),
        (("--record", "{tmp}", "{tree}"), "{tmp}"),
        (("--record", "{tmp}/bad.json", "{tree}"), "{tmp}/bad.json"),
        (("{tmp}",), "{tmp}"),
        (("{tree}/fastdeploy",), "{tree}/fastdeploy"),
        (("--rounds", "0", "{tree}"), "0"),
        (("--history", "{tmp}", "main"), "--history"),
        (("--history", "{tmp}", "main", "{tree}"), "--history"),
    ],
)
def test_wrong_arguments_are_found_before_anything_runs(arguments, named, tree, tmp_path, capsys):
    (tmp_path / "bad.json").write_text("[]")
    (tree / "fastdeploy/output").mkdir(exist_ok=True)
    (tree / "fastdeploy/output/token_processor.py").touch()
    spelt = [one.format(tmp=tmp_path, tree=tree) for one in arguments]
    with pytest.raises(SystemExit) as raised:
        main(spelt)
    assert raised.value.code == 2
    assert named.format(tmp=tmp_path, tree=tree) in capsys.readouterr().err.splitlines()[-1]


# ---- How long a trial may take -----------------------------------------------------------------------------


def test_a_loop_of_its_own_time_does_not_wait():
    async def script():
        await asyncio.sleep(10_000)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10_000)
        return asyncio.get_running_loop().time()

    with virtual_time.Loop() as loop:
        assert loop.run_until_complete(script()) == 20_000
    with virtual_time.Loop() as loop, pytest.raises(RuntimeError):
        loop.run_until_complete(asyncio.Event().wait())


class Machine:
    """A fake clock of CPU time: what a second of waiting costs the script."""

    def __init__(self, cpu_of_a_second, seconds):
        self.cpu, self.cost, self.left = 0.0, cpu_of_a_second, seconds
        self.watched = virtual_time.Watched(self.run, cpu=lambda: self.cpu, sleep=self.sleep)
        self.ends = virtual_time.threading.Event()

    def run(self, went_on):
        self.ends.wait()
        return "the result"

    def sleep(self):
        self.cpu += self.cost
        self.left -= 1
        if not self.left:
            self.ends.set()
            self.watched.thread.join()


@each(
    "cpu_of_a_second, seconds, ends",
    [(0.02, 1000, True), (0.5, 100, True), (1.0, 50, True), (1.0, 100, False), (0.0, 100, False)],
)
def test_a_busy_machine_ends_no_trial(cpu_of_a_second, seconds, ends):
    machine = Machine(cpu_of_a_second, seconds)
    try:
        if ends:
            assert machine.watched.result() == "the result"
        else:
            with pytest.raises(TimeoutError, match="script 0"):
                machine.watched.result()
    finally:
        machine.ends.set()
        machine.watched.thread.join()
