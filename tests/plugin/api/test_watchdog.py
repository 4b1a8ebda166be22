"""What streams, new requests and the operator get when the engine's process is gone: a real one is killed."""

import asyncio
import logging
import os
import sys
import traceback
import types
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import connections, engine_process, entry, watchdog
from fd_postproc.fastdeploy.api.watchdog import EngineGone, Watchdog
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import NotPlain
from fd_postproc.support.process_stat import KnownProcess
from tests.lib.restores import restores
from tests.lib.rows import each

zmq = pytest.importorskip("zmq")
prometheus_client = pytest.importorskip("prometheus_client")


class ParameterError(Exception):
    def __init__(self, param, message):
        super().__init__(message)
        self.param, self.message = param, message


class ControlResponse(SimpleNamespace):
    def __init__(self, request_id, error_code, error_message):
        super().__init__(request_id=request_id, error_code=error_code, error_message=error_message)


def engine_client(path):
    """Restates FastDeploy's engine client, as far as it is asked here."""

    class EngineClient:
        def __init__(self):
            self.connection_manager = SimpleNamespace(request_map={})

        def create_zmq_client(self, model, mode):
            self.zmq_client = SimpleNamespace(file_name=path, socket=zmq.Context().socket(mode))
            self.zmq_client.socket.sndtimeo = 20_000
            self.zmq_client.socket.connect(f"ipc://{path}")

        async def add_requests(self, task):
            await asyncio.to_thread(self.zmq_client.socket.send_string, task)

        async def run_control_method(self, request):
            return "FastDeploy's"

        def check_health(self, time_interval_threashold=30):
            return True, ""

        def close(self):
            self.zmq_client.socket.close(0)
            self.zmq_client.socket.context.term()

    return EngineClient


def line_of(engine):
    """The next line that the engine's process writes."""
    return asyncio.to_thread(lambda: engine.stdout.readline().strip())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def gone(client):
    return watchdog._gone_watchdog(client) is not None


def gauge():
    return prometheus_client.REGISTRY.get_sample_value("fd_postproc_unhealthy", {"reason": "engine"})


def counted(outcome):
    name = "fd_postproc_engine_gone_requests_total"
    return prometheus_client.REGISTRY.get_sample_value(name, {"outcome": outcome}) or 0


@pytest.fixture
def seen(monkeypatch):
    """A watchdog whose loop, engine and looks are the test's."""

    def listener(path):
        if isinstance(made.engine, str):
            raise watchdog.NoEngine(made.engine)
        return made.engine

    monkeypatch.setattr(watchdog, "listener", listener)
    monkeypatch.setattr(watchdog, "socket_file", lambda path: (1, id(made.engine)))
    made = SimpleNamespace(now=0.0, engine=SimpleNamespace(pid=7, is_alive=lambda: True), queues={})
    loop = SimpleNamespace(time=lambda: made.now, call_later=lambda seconds, call: None)
    client = SimpleNamespace(connection_manager=SimpleNamespace(request_map=made.queues))
    made.dog = Watchdog(client, "/nowhere", loop)
    made.dog.begin()

    def after(seconds):
        made.now += seconds
        made.dog.look()

    made.after = after
    return made


def test_what_waits_ends_after_the_results_that_have_come(seen):
    before, queues = counted("ended"), seen.queues
    assert gauge() == 0
    queues["a"], queues["b"] = asyncio.Queue(), asyncio.Queue()
    queues["a"].put_nowait(["a result"])
    seen.engine.is_alive = lambda: False
    seen.after(0.5)
    assert (seen.dog.is_gone, gauge()) == (True, 1)
    seen.after(watchdog.GRACE_S - 0.1)
    assert [queue.qsize() for queue in queues.values()] == [1, 0]
    seen.after(0.1)
    assert queues["a"].get_nowait() == ["a result"]
    for name in "ab":
        group = queues[name].get_nowait()
        for read in (lambda: [*group], lambda: group[0]):  # noqa: B023
            with pytest.raises(EngineGone, match=r"process 7\) is gone"):
                read()
    queues["late"] = asyncio.Queue()  # was on its way when the engine died
    seen.after(0.5)
    assert isinstance(queues["late"].get_nowait(), connections.NoResults)
    seen.after(0.5)
    assert [queue.qsize() for queue in queues.values()] == [0, 0, 0]  # each is told once
    queues["a"] = asyncio.Queue()  # another request of the id
    seen.after(0.5)
    assert [queue.qsize() for queue in queues.values()] == [1, 0, 0]
    assert counted("ended") - before == 4


def test_an_engine_that_is_back_and_does_not_listen_yet_is_found_later(seen, monkeypatch):
    file, connected = [(1, 1)], []
    monkeypatch.setattr(watchdog, "socket_file", lambda path: file[-1])
    seen.dog._client.zmq_client = SimpleNamespace(
        socket=SimpleNamespace(disconnect=connected.append, connect=connected.append)
    )
    seen.engine.is_alive = lambda: False
    seen.after(0.5)
    file.append((1, 2))
    for seen.engine in ("nobody listens", "nobody listens", SimpleNamespace(pid=8, is_alive=lambda: True)):
        assert (seen.dog.is_gone, gauge(), connected) == (True, 1, [])
        seen.after(0.5)
    assert (seen.dog.is_gone, gauge(), connected) == (False, 0, ["ipc:///nowhere"] * 2)


def test_another_process_with_the_number_is_not_the_engine(seen, monkeypatch):
    """A child holds the socket of the one that is gone: the kernel goes on to name its number."""
    monkeypatch.setattr(watchdog, "socket_file", lambda path: (1, 1))
    seen.after(0)
    seen.dog._file = (1, 1)
    seen.engine.is_alive = lambda: False
    seen.after(0.5)
    seen.engine = SimpleNamespace(pid=7, is_alive=lambda: True)
    seen.after(0.5)
    assert (seen.dog.is_gone, gauge()) == (True, 1)


def test_restores_end_nothing_and_hide_nothing(seen, monkeypatch):
    restore = restores(monkeypatch)
    seen.dog._engine = KnownProcess.of(os.getppid())
    for _ in range(3):
        restore()
        seen.after(0.5)
        assert not seen.dog.is_gone
    seen.dog._engine.start += 1  # another process has the number
    seen.after(0.5)
    assert seen.dog.is_gone
    restore()
    seen.after(0.5)
    assert seen.dog.is_gone


def test_an_engine_that_is_not_there_yet_is_found_later(seen, caplog):
    with caplog.at_level(logging.INFO):
        engine, seen.engine, seen.dog._engine = seen.engine, "no file", None
        for _ in range(3):
            seen.after(0.5)
        assert not seen.dog.is_gone
        seen.engine = engine
        seen.after(0.5)
        assert "API side watches the engine" in caplog.text
    told = [one for one in caplog.records if "cannot tell yet" in one.getMessage()]
    assert len(told) == 1  # each reason once
    engine.is_alive = lambda: False
    seen.after(0.5)
    assert seen.dog.is_gone


@pytest.mark.realtime
@pytest.mark.parametrize("is_named", [True, False])
def test_new_requests_are_refused_in_words_until_the_engine_is_back(
    is_named, start_engine, tmp_path, monkeypatch, caplog
):
    """Also where the kernel names this process as the one that listens (gVisor)."""
    if not is_named:
        monkeypatch.setattr(engine_process, "peer_of", lambda path: os.getpid())
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.02)
    monkeypatch.setattr(watchdog, "when_loaded", lambda name, action: None)
    before, path = counted("refused"), str(tmp_path / "engine.socket")
    cls = engine_client(path)
    module = SimpleNamespace(EngineClient=cls, ParameterError=ParameterError, ControlResponse=ControlResponse)
    restore, client = watchdog.install(module), cls()

    async def scene():
        engine = start_engine(path, *["fork"] * is_named)
        client.create_zmq_client("a", zmq.PUSH)
        watchdog.watch(client)
        await client.add_requests("1")
        assert await line_of(engine) == "request 1"
        assert await client.run_control_method(SimpleNamespace(request_id="c")) == "FastDeploy's"
        assert client.check_health() == (True, "")
        engine.kill()
        await until(lambda: gone(client))
        with pytest.raises(ParameterError, match="is gone"):
            await client.add_requests("2")
        answer = await client.run_control_method(SimpleNamespace(request_id="c"))
        assert (answer.request_id, answer.error_code) == ("c", 500)
        assert "is gone" in answer.error_message
        healthy, why = client.check_health(30)
        assert not healthy
        assert "is gone" in why
        second = start_engine(path)
        await until(lambda: not gone(client))
        assert gauge() == 0
        await client.add_requests("3")
        assert await line_of(second) == "request 3"

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(scene(), 60))
    start_engine.end()
    client.close()
    restore()
    assert counted("refused") - before == 2
    assert "fd_postproc: unhealthy (engine): process" in caplog.text
    assert "the engine is back, as process" in caplog.text


@each(
    "task, again",
    [({"request_id": "a_0"}, True), ({"request_id": 5}, False), ({}, False), ("a_0", False)],
)
def test_a_request_that_is_sent_may_have_an_id_that_was_used(task, again):
    """Its early results are kept, though late ones of the request before were not."""
    cls = engine_client("")
    cls.add_requests = add_requests
    watchdog.install(SimpleNamespace(EngineClient=cls, ParameterError=ParameterError))
    client = cls()
    client.connection_manager.request_map = requests = connections.RequestMap({})
    requests["a"] = asyncio.Queue()
    requests.pop("a")
    assert asyncio.run(client.add_requests(task)) is task
    requests.get("a").put_nowait([{"outputs": {"send_idx": 0}}])
    assert bool(requests.held) is again


async def add_requests(client, task):
    return task


def test_a_client_outside_of_a_loop_is_not_watched(tmp_path, monkeypatch):
    monkeypatch.setitem(gate.used, "api watchdog", True)
    module = SimpleNamespace(EngineClient=engine_client(str(tmp_path / "x")), ParameterError=ParameterError)
    entry.install(module)
    client = module.EngineClient()
    client.create_zmq_client("a", zmq.PUSH)
    assert watchdog._gone_watchdog(client) is None
    assert not hasattr(client, watchdog._WATCHDOG)
    client.close()


def test_a_look_that_fails_is_logged_and_the_next_one_comes(seen, caplog, monkeypatch):
    later = []
    monkeypatch.setattr(seen.dog._loop, "call_later", lambda seconds, call: later.append((seconds, call)))
    monkeypatch.setattr(seen.dog, "look", None)
    seen.dog.begin()
    assert "the look at the engine's process failed" in caplog.text
    assert later == [(watchdog.LOOK_S, seen.dog._run)]


def test_an_error_of_fastdeploys_has_fastdeploys_traceback(tmp_path):
    """FastDeploy puts it into what a client reads."""
    cls = engine_client("")

    async def add_requests(self, task):
        raise ValueError(task)

    cls.add_requests = cls.run_control_method = add_requests
    watchdog.install(SimpleNamespace(EngineClient=cls, ParameterError=ParameterError))

    async def ask(method):
        try:
            await method("planted")
        except ValueError:
            return traceback.format_exc()

    for method in (cls().add_requests, cls().run_control_method):
        told = asyncio.run(ask(method))
        assert "planted" in told
        assert "watchdog.py" not in told.replace("test_watchdog.py", "")


def test_it_can_be_switched_off_and_a_client_that_connects_in_another_way_stays(monkeypatch):
    cls = engine_client("")
    stock, module = dict(vars(cls)), SimpleNamespace(EngineClient=cls, ParameterError=ParameterError)
    with monkeypatch.context() as patch:
        patch.setenv("FD_POSTPROC_ENGINE_WATCHDOG", "0")
        with pytest.raises(NotPlain, match="FD_POSTPROC_ENGINE_WATCHDOG is off"):
            watchdog.install(module)
    assert dict(vars(cls)) == stock
    cls.add_requests = lambda client, task: None
    with pytest.raises(NotPlain, match="<lambda>"):
        watchdog.install(module)


# ---- answers that are not streamed -------------------------------------------------------------------------


@pytest.fixture
def serving(monkeypatch):
    """FastDeploy's error response and FastAPI's exception, restated."""

    class HTTPException(Exception):
        def __init__(self, status_code, detail):
            super().__init__(detail)
            self.status_code = status_code

    made = {name: type(name, (SimpleNamespace,), {}) for name in ("ErrorInfo", "ErrorResponse")}
    modules = {
        "fastdeploy.entrypoints.openai.protocol": made,
        "fastdeploy.utils": {"ErrorType": SimpleNamespace(INTERNAL_ERROR="internal_error")},
        "fastapi": {"HTTPException": HTTPException},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(HTTPException=HTTPException, **made)


WORDS = Watchdog(None, "", None).text
GONE, HERE = 0.0, None  # since when


@each(
    "answer, since, said",
    [
        (None, GONE, WORDS),
        (f"generator error: {WORDS}, Traceback", GONE, WORDS),
        *(("max_tokens is wrong", since, "max_tokens is wrong") for since in (GONE, HERE)),
        *((["a whole answer"], since, ["a whole answer"]) for since in (GONE, HERE)),
        (None, HERE, None),
        (AttributeError("data"), GONE, "HTTPException 503 " + WORDS),
        (AttributeError("data"), HERE, "AttributeError data"),
    ],
)
def test_an_error_that_fastdeploy_loses_or_hides_is_said(serving, answer, since, said):
    """Texts are those of error responses; what is raised becomes a 503 only while the engine is gone."""

    class OpenAIServingChat:
        async def create_chat_completion(self, request):
            if isinstance(answer, Exception):
                raise answer
            is_error = isinstance(answer, str)
            return serving.ErrorResponse(error=serving.ErrorInfo(message=answer)) if is_error else answer

    watchdog._answer_in_words(
        "OpenAIServingChat", "create_chat_completion", SimpleNamespace(OpenAIServingChat=OpenAIServingChat)
    )
    handler, dog = OpenAIServingChat(), Watchdog(None, "", None)
    dog._gone_since = since
    handler.engine_client = SimpleNamespace(**{watchdog._WATCHDOG: dog})
    try:
        made = asyncio.run(handler.create_chat_completion("request"))
    except Exception as error:
        status = f"{error.status_code} " if isinstance(error, serving.HTTPException) else ""
        made = f"{type(error).__name__} {status}{error}"
    if hasattr(made, "error"):
        assert said == answer or made.error.type == "internal_error"
        made = made.error.message
    assert made == said


def test_a_serving_class_of_another_kind_stays():
    module = SimpleNamespace(OpenAIServingChat=SimpleNamespace(create_chat_completion=len))
    watchdog._answer_in_words("OpenAIServingChat", "create_chat_completion", module)
    watchdog._answer_in_words("OpenAIServingChat", "create_chat_completion", SimpleNamespace())
    assert module.OpenAIServingChat.create_chat_completion is len
