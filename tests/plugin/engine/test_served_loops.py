"""Which of FastDeploy's loops that send ours takes the place of: those of the meaning that it knows."""

import inspect
import textwrap
from unittest import mock

import pytest

from tests.lib.quiet import Double, imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework
double = Double()
LOOP = "_zmq_send_generated_tokens"
SEND = "_send_batch_response"
OTHERS = [
    (LOOP, "= token_ids, text", "= token_ids[:1], text"),
    (LOOP, "self.request_worker_map.pop(request_id, None)", "self.request_worker_map.get(request_id)"),
    (LOOP, "worker_pid=worker", "worker_pid=None"),
    (LOOP, "in batches.items()", "in list(batches.items())[::-1]"),
    (SEND, "try:", "self.requests = len(batch_data)\n    try:"),
    (SEND, "in batch_data]", "in batch_data if outputs is batch_data[0]]"),
    (SEND, "output.to_dict()", "{**output.to_dict(), 'request_id': 'one'}"),
    (SEND, "socket.send(packed, copy=False)", "[socket.send(packed) for _ in batch_data]"),
]


def sends(plan, name=LOOP, old="", new="", service=None):
    """Whether rounds are sent by ours beside a method of FastDeploy's with another text."""
    engine, server = double.engine__common_engine, double.inter_communicator__zmq_server
    module, cls = (engine, engine.EngineService) if name == LOOP else (server, server.ZmqServerBase)
    text, there = textwrap.dedent(inspect.getsource(vars(cls)[name])), {}
    assert old in text
    exec(text.replace(old, new), vars(module), there)
    sending = imported("fd_postproc.fastdeploy.engine.delivery.sending")
    with mock.patch.object(cls, name, there[name]):
        scheduler = double.scheduler__local_scheduler.LocalScheduler
        stock = sending.Stock.of(scheduler, service or engine.EngineService, server)
        return imported("tools.accept.deliveries").try_out(plan, stock).sends


def test_methods_of_the_same_meaning_are_served(plan, delivery):
    assert sends(plan)
    assert sends(plan, LOOP, "new_contents", "wanted")
    assert sends(plan, SEND, "packed", "message")
    assert not sends(plan, service=object)


@each("name, old, new", OTHERS)
def test_one_of_another_meaning_is_left_alone(name, old, new, plan, delivery):
    assert not sends(plan, name, old, new)
