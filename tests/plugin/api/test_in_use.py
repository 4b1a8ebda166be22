"""Whether each part of the API side says what its object is, in use."""

import asyncio
import logging
import sys
import types
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import detokenising, entry, in_use, watchdog
from fd_postproc.fastdeploy.api.connections import UTILS, RequestMap
from fd_postproc.fastdeploy.api.responses import API_SERVER
from fd_postproc.fastdeploy.api.unpacking import UnpackingMsgpack
from fd_postproc.fastdeploy.seams import API_PARTS as PARTS
from fd_postproc.fastdeploy.seams import Seam

prometheus_client = pytest.importorskip("prometheus_client")


def gauge(name):
    sample = {"path": f"api {name}"}
    return prometheus_client.REGISTRY.get_sample_value("fd_postproc_fast_path", sample)


def of_module(module, wraps=None):
    """A function that looks as if the module had defined it."""
    function = types.FunctionType((lambda: None).__code__, vars(module))
    if wraps is not None:
        wraps.__wrapped__ = function
        return wraps
    return function


@pytest.fixture
def serving(monkeypatch):
    """An engine client with all parts in; its event loop, with what is to run in it."""
    utils = types.ModuleType(UTILS)
    utils.msgpack = UnpackingMsgpack(None)
    program = types.ModuleType("__main__")
    program.__spec__ = SimpleNamespace(name=API_SERVER)
    program.JSONResponse = type("Response", (), {"is_fd_postproc": True})
    monkeypatch.setitem(sys.modules, UTILS, utils)
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(Seam, "put_in", lambda seam, module: None)
    monkeypatch.setattr(in_use, "api_log", lambda: logging.getLogger("fd_postproc"))
    monkeypatch.setattr(detokenising, "ways_of", lambda tokenizer: SimpleNamespace(is_quick=True))
    in_use._has_a_way.cache_clear()

    class Processor:
        tokenizer = "a tokenizer"
        ids2tokens = of_module(detokenising, lambda: None)

        def process_response_dict_streaming(self):
            pass

        process_response_dict_streaming.views_of = lambda processor: SimpleNamespace(chunk="a view")

    class EngineClient:
        def __init__(self):
            self.data_processor = Processor()
            self.connection_manager = SimpleNamespace(request_map=RequestMap({}), pull_client=object())
            setattr(self, watchdog._WATCHDOG, SimpleNamespace(knows_engine=True))

    timers = []
    loop = SimpleNamespace(call_later=lambda seconds, call: timers.append(call))
    return SimpleNamespace(client=EngineClient(), utils=utils, program=program, loop=loop, timers=timers)


def test_every_part_is_looked_at_and_all_are_in_use(serving):
    assert in_use.parts_in_use(serving.client) == dict.fromkeys(PARTS, True)


def take_out(serving, name):
    """What FastDeploy, or anybody, may do after a part was put in."""
    client = serving.client
    if name == "connections":
        client.connection_manager.request_map = type("Other", (dict,), {})()
    elif name == "unpacking":
        serving.utils.msgpack = sys
    elif name == "watchdog":
        setattr(client, watchdog._WATCHDOG, SimpleNamespace(knows_engine=False))
    elif name == "detokenising":
        type(client.data_processor).ids2tokens = lambda processor: None
    elif name == "parsers":
        streamed = type(client.data_processor).process_response_dict_streaming
        streamed.views_of = lambda processor: SimpleNamespace(chunk=processor)
    elif name == "responses":
        serving.program.JSONResponse = dict


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_not_in_use_says_so_while_it_serves(serving, name):
    in_use.begin(serving.client, serving.loop)
    assert gauge(name) == 1
    take_out(serving, name)
    serving.timers.pop()()
    assert {part: gauge(part) for part in PARTS} == {part: float(part != name) for part in PARTS}
    assert len(serving.timers) == 1


def test_results_that_come_one_by_one_are_neither_kept_nor_unpacked(serving):
    del serving.client.connection_manager.pull_client
    used = in_use.parts_in_use(serving.client)
    assert [name for name in used if not used[name]] == ["connections", "unpacking"]


def test_a_tokenizer_without_a_way_is_not_in_use(serving, monkeypatch):
    def refuses(tokenizer):
        raise ValueError

    monkeypatch.setattr(detokenising, "ways_of", refuses)
    assert in_use.parts_in_use(serving.client)["detokenising"] is False


def test_the_program_is_put_in_under_the_name_that_it_runs_by(serving, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(Seam, "put_in", lambda seam, one: seen.append((seam.name, one)) or "another kind")
    with caplog.at_level(logging.INFO):
        in_use.begin(serving.client, serving.loop)
    assert seen == [("api responses", serving.program)]
    assert "leaves the JSON of whole answers to FastDeploy: another kind" in caplog.text


def test_being_put_in_is_not_being_in_use(monkeypatch):
    """The engine's process imports the serving code, too, and its gauges count."""
    told = []
    monkeypatch.setattr("fd_postproc.fastdeploy.logs.export", lambda *all_of_it: told.append(all_of_it))
    monkeypatch.setattr(Seam, "put_in", lambda seam, module: None)
    monkeypatch.setattr(in_use, "api_log", lambda: logging.getLogger("fd_postproc"))
    entry._put_in("unpacking", object())
    assert told == []


def test_a_client_that_connects_is_looked_at_in_its_loop_only(serving, monkeypatch):
    class EngineClient:
        def create_zmq_client(self, model, mode):
            return model, mode

    began = []
    monkeypatch.setattr(in_use, "begin", lambda client, loop: began.append((client, loop)))
    restore = in_use.install(SimpleNamespace(EngineClient=EngineClient))
    client = EngineClient()
    assert client.create_zmq_client(1, mode=2) == (1, 2)
    assert began == []

    async def serve():
        client.create_zmq_client(1, 2)
        assert began == [(client, asyncio.get_running_loop())]

    asyncio.run(serve())
    restore()
    assert not hasattr(EngineClient.create_zmq_client, "__wrapped__")


def test_a_look_that_fails_is_logged_and_the_next_one_comes(serving, monkeypatch, caplog):
    monkeypatch.setattr(in_use, "parts_in_use", lambda client: 1 / 0)
    in_use.begin(serving.client, serving.loop)
    assert "the look at what is in use failed" in caplog.text
    assert len(serving.timers) == 1
