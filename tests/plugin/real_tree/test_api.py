"""The API server's side in FastDeploy's own serving code, on the real trees."""

import pytest

from tests.lib.chunk_replay.plants import PLANTS
from tests.lib.real_tree import LIB, each_tree, run

pytestmark = pytest.mark.fastdeploy

SERVE = str(LIB / "chunk_replay" / "serve.py")
TRIAL = """
import importlib, json
from dataclasses import asdict
from fd_postproc.fastdeploy.api.trial import compare
names = ("serving_chat", "serving_completion")
modules = [importlib.import_module(f"fastdeploy.entrypoints.openai.{name}") for name in names]
print("told: " + json.dumps([asdict(compare(module)[0]) for module in modules]))
"""


def serve(tree, folder, *arguments, **variables):
    folder.mkdir(exist_ok=True)
    told, _ = run(tree, SERVE, *arguments, folder=folder, shim=False, **variables)
    if "other" in told:
        pytest.skip(told["other"])
    return told


@each_tree
def test_the_trial_is_equal_or_a_reason_is_given(tree, tmp_path):
    verdicts, _ = run(tree, TRIAL, folder=tmp_path, shim=False)
    for verdict in verdicts:
        assert "Error" not in verdict["reason"], verdict
        assert verdict["compatible"] == verdict["reason"].startswith("equal in")


@each_tree
def test_recorded_answers_are_the_same_with_it_and_without(tree, tmp_path):
    off = serve(tree, tmp_path / "off")
    on = serve(tree, tmp_path / "on", FD_PLUGINS="fd_postproc")
    assert off["written"] == 0
    assert on["written"] > 2000
    assert on["wrong"] == off["wrong"]
    assert on["played"] == off["played"] > 290
    assert sum(on["left"].values()) < on["written"] / 100, on["left"]


@each_tree
def test_the_switch_leaves_everything_to_fastdeploy(tree, tmp_path):
    told = serve(tree, tmp_path, "g003", FD_PLUGINS="fd_postproc", FD_POSTPROC_API="0")
    assert told["played"] == 1
    assert told["written"] == 0


@pytest.mark.nightly
@each_tree
@pytest.mark.parametrize("planted", PLANTS)
def test_a_planted_bug_is_seen(tree, planted, tmp_path):
    plant = f"tests.lib.chunk_replay.plants:{planted}"
    off = serve(tree, tmp_path / "off")
    assert serve(tree, tmp_path / "on", plant, FD_PLUGINS="fd_postproc")["wrong"] != off["wrong"]
