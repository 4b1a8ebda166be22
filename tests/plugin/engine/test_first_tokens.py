"""Requests of a decode node that wait for their first token, and a prefill node that dies meanwhile."""

import socket
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from fd_postproc.fastdeploy.engine.health import first_tokens
from fd_postproc.fastdeploy.engine.health.first_tokens import FirstTokens, refuses
from tests.lib.rig import Rig

pytestmark = pytest.mark.framework
DEAD, ALIVE = ("127.0.0.1", 1001), ("127.0.0.1", 1002)


@pytest.fixture
def rig():
    """A decode node: "a" and "b" have their tokens, "c" and "d" a slot, "e" is in the scheduler only."""
    one = Rig("topk", ["a", "b", "c", "d"], splitwise_role="decode")
    places = {"a": DEAD, "b": ALIVE, "c": DEAD, "d": ALIVE, "e": DEAD}
    infos = {
        name: {"prefill_ip": host, "prefill_connector_port": str(port)}
        for name, (host, port) in places.items()
    }
    for name, request in one.manager.requests.items():
        request.disaggregate_info = infos[name]
    for slot in 2, 3:  # as FastDeploy's manager reserves it
        one.manager.tasks_list[slot] = None
    raw = {name: SimpleNamespace(disaggregate_info=info) for name, info in infos.items()}
    one.sink.requests = {name: SimpleNamespace(raw=value) for name, value in raw.items()}
    return one


def looks(rig, watch, seconds):
    """The ids of what ends, one look a half second."""
    for tick in range(int(2 * seconds) + 1):
        watch.look(rig.processor, 100.0 + tick / 2)
    return [result.request_id for put in rig.sink.puts for result in put]


def gauge():
    return REGISTRY.get_sample_value("fd_postproc_waiting_first_tokens")


def test_those_of_a_dead_prefill_node_end_and_no_others(rig):
    asked = []
    watch = FirstTokens(lambda address: asked.append(address) or address == DEAD)
    assert looks(rig, watch, 1) == []
    assert (gauge(), asked) == (3, [])
    assert sorted(looks(rig, watch, 8)) == ["c", "e"]
    results = [result for put in rig.sink.puts for result in put]
    assert {(one.error_code, one.finished) for one in results} == {(502, True)}
    assert all(one.error_msg.startswith("PD Error") for one in results)  # the router asks another pair then
    assert rig.manager.stop_flags[:4] == [False, False, True, False]
    assert [call for call in rig.manager.calls if "recycle" in call[0]] == [["pre_recycle_resource", "c"]]
    assert rig.processor.counters.failed_requests == 2


@pytest.mark.parametrize("refused", [0, 2, first_tokens.REFUSALS - 1])
def test_one_that_is_there_again_is_not_dead(rig, refused):
    answers = iter([True] * refused)
    watch = FirstTokens(lambda address: address == DEAD and next(answers, False))
    assert looks(rig, watch, 60) == []


def test_a_first_token_that_comes_meanwhile(rig):
    """The request goes on; its prefill node is not asked for it any more."""
    request = rig.manager.requests["c"]

    def arrives(address):
        rig.manager.tasks_list[2] = request
        return address == DEAD

    assert looks(rig, FirstTokens(arrives), 20) == ["e"]
    assert rig.manager.stop_flags[2] is False


@pytest.mark.parametrize("role", ["mixed", "prefill"])
def test_other_nodes_ask_nobody(rig, role):
    rig.processor.cfg.scheduler_config.splitwise_role = role
    assert looks(rig, FirstTokens(lambda address: True), 20) == []


def test_only_a_refused_connection_is_proof():
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        address = server.getsockname()
        assert not any(refuses(address) for _ in range(4))  # nobody accepts, and its backlog fills
    assert refuses(address)
    assert not refuses(("name.invalid", 1))
