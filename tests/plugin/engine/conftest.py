"""Token threads that run, and the table of FastDeploy's classes."""

import contextlib
import os
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.lib import fakes
from tests.lib.plugged import plugin_class, stock_class
from tests.lib.quiet import imported
from tests.lib.rig import MODE, Rig


@pytest.fixture
def rig_of():
    """A function that makes rigs, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **mode):
            rig = Rig(*arguments, **mode)
            stack.callback(rig.close)
            return rig

        yield make


@pytest.fixture
def started(ops_queue):
    """A function that starts the token thread of a rig with two requests, and ends the one before."""
    rigs = []

    def close():
        while rigs:
            rigs.pop().close()

    def start(channel="plain", names=("a", "b"), *, prepare=None, **mode):
        close()
        rig = Rig(channel, names, **mode)
        if prepare is not None:
            prepare(rig)
        rigs.append(rig)
        rig.start()
        return rig

    yield start
    close()


@pytest.fixture
def engine():
    """FastDeploy's engine with its own token processor and the server that sends results."""
    service, sockets = imported("fastdeploy.engine.common_engine"), imported("fastdeploy.inter_communicator")
    mode = {**MODE, "max_num_seqs": 8, "channel": "topk", "method": None, "enable_logprob": True}
    config = imported("tests.lib.step_replay.replay").make_config(mode)
    with mock.patch.object(service, "TokenProcessor", stock_class()):
        made = service.EngineService(config, fakes.ResourceManager(8, "list"))
    made.send_response_server = sockets.ZmqIpcServer("send loop", "PUSH")
    yield made
    made.send_response_server.close()
    made.token_processor._finalizer()


@pytest.fixture
def delivery(plan, engine):
    """What takes the engine's results and sends them; four requests, of two processes and of none."""
    service, name = type(engine), "_zmq_send_generated_tokens"
    made = imported("fd_postproc.fastdeploy.engine.delivery.delivery").Delivery(plan, engine.scheduler)
    setattr(service, name, made.stock.loop)  # whatever earlier tests have left
    engine.scheduler.requests.update(dict.fromkeys("abcd"))
    engine.request_worker_map.update(a=1, b=2, c=1)
    yield made
    made.end()
    assert vars(service)[name] is made.stock.loop


@pytest.fixture
def plan():
    """What the plug-in knows of the classes of FastDeploy's results."""
    return plugin_class().plan


class SocketServer:
    """The engine's end of the socket of steps, as FastDeploy binds it."""

    def __init__(self, path):
        import zmq

        self.context, self.address, self.closed = zmq.Context(), f"ipc://{path}", False
        self.socket = self.context.socket(zmq.PULL)
        self.socket.bind(self.address)

    def recv_pyobj(self):
        raise AssertionError("the plug-in receives itself")

    def close(self):
        self.closed = True
        self.socket.close()
        self.context.term()


@pytest.fixture
def receiving(monkeypatch, tmp_path, ops_queue):
    """A function that starts a processor with requests "r0", "r1", ..., which receives from a real socket.

    It returns ``processor``, ``send`` (bytes), ``put`` (results by step), ``peer`` (what workers are told).
    """
    import zmq

    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    made = []

    def start(channel, slots, **mode):
        rig = Rig(channel, [f"r{slot}" for slot in range(slots)], **mode)
        processor, server = rig.processor, SocketServer(tmp_path / "steps")
        assert type(processor).__module__.startswith("fd_postproc")
        processor.zmq_server = server
        scheduler = processor.cached_generated_tokens = fakes.Scheduler()
        sender = zmq.Context.instance().socket(zmq.PUSH)
        sender.setsockopt(zmq.LINGER, 0)
        sender.connect(server.address)
        made.append((rig, server, sender))
        peer = os.environ.get("FD_POSTPROC_PEER", "")
        processor.run()
        return SimpleNamespace(processor=processor, send=sender.send, put=scheduler.put, peer=peer)

    yield start
    for rig, server, sender in made:
        rig.close()
        sender.close()
        assert server.closed


@pytest.fixture
def fallbacks():
    """A function that says how often a seam's own work has failed."""
    from prometheus_client import REGISTRY

    return lambda seam: REGISTRY.get_sample_value("fd_postproc_fallbacks_total", {"seam": seam}) or 0
