"""From a step's results to the API server's socket, in a real FastDeploy."""

import pytest

from tests.lib.real_tree import LIB, each_tree, run, serves

pytestmark = pytest.mark.fastdeploy


@each_tree
def test_the_schedulers_wait_until_results_are_put(tree, tmp_path):
    serves(tree)
    told, _ = run(tree, str(LIB / "scheduler_waits.py"), folder=tmp_path)
    for name in ("local", "data-parallel"):
        stock, ours = told[name]["stock"], told[name]["ours"]
        assert stock["idle"] > 10, name
        assert ours["idle"] <= 1, name
        assert stock["got"] == ours["got"] == 20
        assert ours["ended"]
        assert told[name]["given back"]
        assert "instead of 0.001 s" in told[name]["said"]


LOOP = """
import importlib, json
module = importlib.import_module("fastdeploy.output.token_processor")
service = importlib.import_module("fastdeploy.engine.common_engine").EngineService
envs = importlib.import_module("fastdeploy.envs")
from fd_postproc.fastdeploy.engine.messages import BATCH, method_in_use
from fd_postproc.fastdeploy.engine.send_loop import served_loop
from fd_postproc.fastdeploy.engine.shapes import plan_of
served = served_loop(service, plan_of(module))
print("told: " + json.dumps([method_in_use(envs) == BATCH, served is not None]))
"""


@each_tree
def test_the_loop_that_sends_batches_is_served(tree, tmp_path):
    serves(tree)
    (batches, served), _ = run(tree, LOOP, folder=tmp_path)
    assert batches == served


MESSAGES = """
import importlib, json
module = importlib.import_module("fastdeploy.output.token_processor")
server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
from fd_postproc.fastdeploy.engine.messages import served_methods
from fd_postproc.fastdeploy.engine.shapes import plan_of
names = ("_send_batch_response", "_send_response_per_step")
there = [name for name in names if hasattr(server.ZmqServerBase, name)]
print("told: " + json.dumps([there, list(served_methods(server, plan_of(module)))]))
"""


@each_tree
def test_every_method_that_packs_results_is_served(tree, tmp_path):
    serves(tree)
    (there, served), _ = run(tree, MESSAGES, folder=tmp_path)
    assert there == served
    assert served


@each_tree
def test_results_are_packed_as_msgpack_packs_them(tree, tmp_path):
    serves(tree)
    told, _ = run(tree, str(LIB / "packed_results.py"), 100, folder=tmp_path)
    assert told["difference"] is None
    assert told["results"] > 2000
    assert told["asked"] < told["results"] / 4  # ends of requests that speculate
