"""From a step's results to the API server's socket, in a real FastDeploy."""

import pytest

from tests.lib.real_tree import LIB, each_tree, run, serves

pytestmark = pytest.mark.fastdeploy


@each_tree
def test_results_are_packed_as_msgpack_packs_them(tree, tmp_path):
    serves(tree)
    if "_msgpack_default" not in (tree / "fastdeploy/inter_communicator/zmq_server.py").read_text():
        pytest.skip("it pickles results one by one, and its code sends them")
    told, _ = run(tree, str(LIB / "packed_results.py"), 100, folder=tmp_path)
    assert told["difference"] is None
    assert told["results"] > 2000
    assert told["asked"] < told["results"] / 2  # first tokens, ends, what is no steady state
