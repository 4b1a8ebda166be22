"""Answers with routed experts and sampling masks: the bytes are FastDeploy's, whoever made the message."""

from pathlib import Path

import pytest

from tests.lib.real_tree import each_tree, run

pytestmark = pytest.mark.fastdeploy

PROGRAM = str(Path(__file__).with_name("rollouts.py"))

LONGEST_HOLD_S = 0.03
"""Of the event loop, in CPU time: some tenths of a millisecond; FastDeploy's own way needs 600 ms."""


@each_tree
def test_bodies_are_the_same(tree, tmp_path):
    told, _ = run(tree, PROGRAM, folder=tmp_path)
    if isinstance(told, str):
        pytest.skip(told)
    assert told.pop("hold") < LONGEST_HOLD_S
    assert {name for name, same in told.items() if not all(same)} == set()
    protocol = tree / "fastdeploy" / "entrypoints" / "openai" / "protocol.py"
    if "routed_experts" in protocol.read_text():  # not on the development branch
        assert told["experts, large"][-1] > 8000 * 46 * 8 * 8
