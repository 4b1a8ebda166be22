"""From a step's results to the API server's socket, in a real FastDeploy."""

import pytest

from tests.lib.real_tree import LIB, each_tree, run, serves

pytestmark = pytest.mark.fastdeploy


WAY = """
import importlib, json
module = importlib.import_module("fastdeploy.output.token_processor")
service = importlib.import_module("fastdeploy.engine.common_engine").EngineService
server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
scheduler = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
envs = importlib.import_module("fastdeploy.envs")
from fd_postproc.fastdeploy.engine.delivery.sending import Stock, sends_batches
from tools.accept.deliveries import try_out
from fd_postproc.fastdeploy.engine.results.result_classes import plan_of
served = try_out(plan_of(module), Stock.of(scheduler, service, server))
print("told: " + json.dumps([sends_batches(envs), served.sends, served.hands_over]))
"""


@each_tree
def test_the_way_to_the_socket_is_served_where_batches_are_sent(tree, tmp_path):
    serves(tree)
    (batches, sends, hands_over), _ = run(tree, WAY, folder=tmp_path)
    assert batches == sends
    assert hands_over


@each_tree
def test_results_are_packed_as_msgpack_packs_them(tree, tmp_path):
    serves(tree)
    if "_msgpack_default" not in (tree / "fastdeploy/inter_communicator/zmq_server.py").read_text():
        pytest.skip("it pickles results one by one, and its code sends them")
    told, _ = run(tree, str(LIB / "packed_results.py"), 100, folder=tmp_path)
    assert told["difference"] is None
    assert told["results"] > 2000
    assert told["asked"] < told["results"] / 4  # ends of requests that speculate
