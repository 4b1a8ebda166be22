"""`fd_postproc.ops`' save functions beside those of a real FastDeploy, on the same inputs."""

from pathlib import Path

import pytest

from tests.lib.real_tree import each_tree, run

pytestmark = pytest.mark.fastdeploy
PROGRAM = Path(__file__).with_name("dispatch_beside.py")


@each_tree
def test_the_same_messages(tree, tmp_path, queue_key, raised_limits):
    """By proposer, prefill and decode node, without log-probabilities and with 0 and 20 asked for."""
    post = tree and tree / "fastdeploy/model_executor/pre_and_post_process.py"
    if post and "def save_output_speculate(" not in post.read_text():
        pytest.skip("this FastDeploy has no save_output_speculate: its worker calls another function")
    told, _ = run(tree, str(PROGRAM), folder=tmp_path, FD_POSTPROC_DIALECT="packed")
    assert told["steps"] == 96
    assert told["wrong"] == []
