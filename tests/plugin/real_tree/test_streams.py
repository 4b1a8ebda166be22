"""Steps over ZeroMQ on the real classes: FastDeploy's own sockets, Paddle's tensors, its workers' thread."""

import pytest

from tests.lib.real_tree import LIB, each_tree, run, serves

pytestmark = pytest.mark.fastdeploy


@each_tree
def test_the_code_of_steps_over_zeromq_is_known(tree):
    assert serves(tree, FD_USE_GET_SAVE_OUTPUT_V1="1")["compatible"]


@each_tree
def test_speculative_scripts_of_the_trial_through_fastdeploys_own_socket(tree, tmp_path):
    serves(tree, FD_USE_GET_SAVE_OUTPUT_V1="1")
    told, _ = run(tree, str(LIB / "drafts_over_zmq.py"), folder=tmp_path)
    assert told["difference"] is None
    assert told["scripts"] >= 5
    assert told["steps"] > 15
