"""What is put into FastDeploy's module so that results are packed at once, and taken out again."""

import queue
import types
from unittest import mock

import msgpack
import pytest

from tests.lib.quiet import Double, imported
from tests.lib.rig import Rig

pytestmark = pytest.mark.framework
double = Double()


@pytest.fixture
def server_module():
    return double.inter_communicator__zmq_server


@pytest.fixture
def plan():
    module = imported("fastdeploy.output.token_processor")
    return imported("fd_postproc.fastdeploy.engine.shapes").plan_of(module)


@pytest.fixture
def packing(plan, server_module):
    made = imported("fd_postproc.fastdeploy.engine.messages").Packing(plan, server_module)
    yield made
    made.end()
    assert server_module.msgpack is msgpack


@pytest.fixture
def server(server_module):
    made = server_module.ZmqIpcServer("packing", "PUSH")
    yield made
    made.close()


def result(plan, name, **values):
    made = plan.new_result(0, 1, name, 3, None)
    for key, value in values.items():
        setattr(made, key, value)
    return made


def sent(server):
    got = []
    while True:
        try:
            got.append(server.socket.queue.get(block=False))
        except queue.Empty:
            return got


def batch(plan):
    theirs = plan.fd.RequestOutput(request_id="c", finished=True, error_code=500, error_msg="no")
    return [[result(plan, "a"), result(plan, "a", finished=True)], [result(plan, "b")], [theirs]]


def both_ways(plan, packing, send):
    """What is sent before and after ours is put in."""
    send(batch(plan))
    packing.begin()
    send(batch(plan))


def test_a_batch(plan, packing, server):
    both_ways(plan, packing, lambda some: server.send_response(None, some, worker_pid=7))
    before, after = sent(server)
    assert before == after
    assert (packing.messages.packed, packing.messages.asked) == (4, 1)


def test_steps_of_the_internal_adapter(plan, packing, server, monkeypatch):
    monkeypatch.setenv("FD_ENABLE_INTERNAL_ADAPTER", "1")
    both_ways(plan, packing, lambda some: server.send_response(None, some))
    before, after = sent(server)
    assert before == after
    assert (packing.messages.packed, packing.messages.asked) == (4, 1)


def test_steps_that_wait_for_their_client(plan, packing, server, monkeypatch):
    """Some came before ours was put in."""
    monkeypatch.setenv("FD_ENABLE_INTERNAL_ADAPTER", "1")
    server.response_handle_per_step = None
    both_ways(plan, packing, lambda some: server.send_response(None, some))
    server.response_handle_per_step = b"client"
    server.send_response(None, [[result(plan, "d")]] * 20)
    (packed,) = sent(server)
    assert packed == msgpack.packb(
        [[one.to_dict() for one in step] for step in [*batch(plan) * 2, *[[result(plan, "d")]] * 20]]
    )


def test_what_waits_is_packed_by_fastdeploy_once_ours_has_gone(plan, packing, server, monkeypatch):
    monkeypatch.setenv("FD_ENABLE_INTERNAL_ADAPTER", "1")
    packing.begin()
    server.response_handle_per_step = None
    server.send_response(None, batch(plan))
    packing.end()
    server.response_handle_per_step = b"client"
    server.send_response(None, [])
    (packed,) = sent(server)
    assert packed == msgpack.packb([[one.to_dict() for one in step] for step in batch(plan)])


def test_one_request_a_message_is_left_alone(plan, packing, server, monkeypatch):
    monkeypatch.setenv("ZMQ_SEND_BATCH_DATA", "0")
    both_ways(plan, packing, lambda some: server.send_response("a", some[0]))
    before, after = sent(server)
    assert before == after
    assert packing.messages.packed == 0


@pytest.mark.parametrize("data", [[], [[]], ()])
def test_nothing(data, packing, server):
    server.send_response(None, data)
    packing.begin()
    server.send_response(None, data)
    before, after = sent(server)
    assert before == after


def test_a_message_that_fails_is_fastdeploys_error(plan, packing, server, server_module):
    with mock.patch.object(server_module, "llm_logger") as log:
        both_ways(plan, packing, lambda some: server.send_response(None, [*some, [5]], worker_pid=7))
    before, after = [call.args for call in log.error.call_args_list]
    assert before == after
    assert sent(server) == []


def test_another_msgpack_gets_dictionaries(plan, packing, server, server_module):
    packing.begin()
    with mock.patch.object(server_module, "msgpack") as other:
        other.packb.return_value = b"packed"
        server.send_response(None, batch(plan))
    ((packed,), _) = other.packb.call_args
    assert [[one["request_id"] for one in some] for some in packed] == [["a", "a"], ["b"], ["c"]]


def test_the_module_is_msgpack_for_everything_else(packing, server_module):
    packing.begin()
    ours = server_module.msgpack
    assert ours is not msgpack
    assert isinstance(ours, types.ModuleType)
    assert ours.unpackb is msgpack.unpackb
    assert ours.packb([[1], [2]]) == msgpack.packb([[1], [2]])
    assert ours.packb({1: 2}, use_bin_type=False) == msgpack.packb({1: 2})
    assert not hasattr(ours, "nothing")
    with pytest.raises(TypeError):
        ours.packb(object())


def test_it_is_taken_out_again(packing, server_module):
    base = server_module.ZmqServerBase
    before = dict(vars(base))
    packing.begin()
    packing.begin()
    changed = {name for name in before if vars(base)[name] is not before[name]}
    assert changed == {"_send_batch_response", "_send_response_per_step"}
    assert all(vars(base)[name].__name__ == name for name in changed)
    packing.end()
    assert dict(vars(base)) == before
    packing.end()
    assert dict(vars(base)) == before


def test_what_somebody_has_put_there_since_stays(packing, server_module):
    base, other = server_module.ZmqServerBase, mock.Mock()
    packing.begin()
    with (
        mock.patch.object(base, "_send_batch_response", other),
        mock.patch.object(server_module, "msgpack", other),
    ):
        packing.end()
        assert base._send_batch_response is server_module.msgpack is other
        packing.begin()
        packing.end()
    packing.end()
    base._send_batch_response = packing.methods["_send_batch_response"]
    server_module.msgpack = msgpack


def test_a_second_one_takes_the_place_of_the_first(plan, packing, server, server_module):
    packing.begin()
    second = type(packing)(plan, server_module)
    assert second.methods == packing.methods
    second.begin()
    server.send_response(None, batch(plan))
    assert (packing.messages.packed, second.messages.packed) == (0, 4)
    second.end()
    assert server_module.msgpack is msgpack


def test_what_is_kept_is_still_a_list_of_results(plan, packing, server, monkeypatch):
    """FastDeploy looks at what it keeps."""
    monkeypatch.setenv("FD_ENABLE_INTERNAL_ADAPTER", "1")
    packing.begin()
    server.response_handle_per_step = None
    server.send_response(None, batch(plan))
    kept = server.cached_results["data"]
    assert [len(step) for step in kept] == [2, 1, 1]
    assert kept[-1][-1].finished


# ---- whether a method is served --------------------------------------------------------------------

BODY = """
def _send_batch_response(self, batch_data, worker_pid=None):
    try:
        result = msgpack.packb([[output.to_dict() for output in outputs] for outputs in batch_data])
        with self.response_token_lock:
            self.socket.send(result, copy=False)
    except Exception as error:
        llm_logger.error(f"{error}")
"""
OTHERS = {
    "requests are counted": ("try:", "self.n = sum(len(some) for some in batch_data)\n    {0}"),
    "requests are told": ("try:", "llm_logger.info([len(some) for some in batch_data])\n    {0}"),
    "another name": ("llm_logger.error", "print(output); {0}"),
    "the first only": ("in batch_data]", "in batch_data if outputs == batch_data[0]]"),
    "an attribute of results": ("output.to_dict()", "{{**output.to_dict(), 'address': output.address}}"),
    "a longer dictionary": ("output.to_dict()", "dict(output.to_dict())"),
    "backwards": ("outputs in batch_data]", "outputs in list(batch_data)[::-1]]"),
    "twice": ("self.socket.send(result, copy=False)", "[self.socket.send(result) for _ in batch_data]"),
}


def module_with(body):
    made = types.ModuleType("other")
    vars(made).update(vars(double.inter_communicator__zmq_server))
    there = {}
    exec(body, vars(made), there)
    made.ZmqServerBase = type("ZmqServerBase", (), there)
    made.ZmqIpcServer = type("ZmqIpcServer", (made.ZmqServerBase,), {})
    return made


def served(body, plan):
    messages = imported("fd_postproc.fastdeploy.engine.messages")
    return set(messages.served_methods(module_with(body), plan))


def test_a_method_of_the_same_meaning_is_served(plan):
    assert served(BODY, plan) == {"_send_batch_response"}


@pytest.mark.parametrize("what", OTHERS)
def test_one_of_another_meaning_is_left_alone(what, plan):
    old, new = OTHERS[what]
    assert old in BODY
    assert served(BODY.replace(old, new.format(old)), plan) == set()


@pytest.mark.parametrize("other", [types.ModuleType("empty"), None, object()])
def test_no_module_of_fastdeploys(other, plan):
    messages = imported("fd_postproc.fastdeploy.engine.messages")
    assert messages.served_methods(other, plan) == {}


def test_the_trial_leaves_no_trace(plan, packing, server_module):
    before = dict(vars(server_module)), dict(vars(server_module.ZmqServerBase))
    with mock.patch.object(server_module.llm_logger, "handle") as handle:
        assert (
            len(imported("fd_postproc.fastdeploy.engine.messages").served_methods(server_module, plan)) == 2
        )
    handle.assert_not_called()
    assert (dict(vars(server_module)), dict(vars(server_module.ZmqServerBase))) == before


# ---- in the engine ---------------------------------------------------------------------------------


def test_a_token_processor_puts_it_in_while_it_runs(server_module, ops_queue):
    rig = Rig("topk", ["a"])
    try:
        assert server_module.msgpack is msgpack
        rig.start()
        assert server_module.msgpack is not msgpack
        rig.processor.stop(20)
        assert server_module.msgpack is msgpack
    finally:
        rig.close()
