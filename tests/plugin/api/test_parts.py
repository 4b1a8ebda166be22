"""Which parts of the API side are put in, and who is told of those that are not."""

import asyncio
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from fd_postproc import doctor
from fd_postproc.doctor import Finding, Scope
from fd_postproc.fastdeploy.api import entry, judged, watchdog
from fd_postproc.fastdeploy.events import gauges, guard
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import API_PARTS as PARTS
from fd_postproc.fastdeploy.gate.seams import SEAMS
from tests.lib.rows import each

OTHER = SimpleNamespace(DealerConnectionManager=SimpleNamespace())


@each("name", PARTS)
def test_a_module_of_another_kind_keeps_its_own(name, monkeypatch):
    """Its reason is said in words; nothing is raised, and nothing put in."""
    monkeypatch.setattr(gate, "used", {name: True})
    module = SimpleNamespace()
    assert gate.put_in(PARTS[name], module)
    assert vars(module) == {}
    assert gate.used[name]  # another of the row's modules has ours
    assert callable(PARTS[name].maker())


def test_the_reason_is_logged_and_the_gauge_set(caplog, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(gate, "used", {})
    monkeypatch.setattr(judged, "api_log", logging.getLogger)
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # as two modules that have the same class
            entry._put_in("api unpacking", OTHER)
        judged.leave("api unpacking", gate.put_in(PARTS["api unpacking"], OTHER))  # as a stream's
    assert caplog.text.count("leaves api unpacking to FastDeploy: ") == 1
    assert gauge("api unpacking") == 0


def gauge(name, metric="fast_path", label="path"):
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value(f"fd_postproc_{metric}", {label: name})


@each("name", ["api unpacking", "api detokenising"])
@pytest.mark.falls_back
def test_a_part_that_is_off_after_failures_is_no_taken_path(name, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(gate, "used", {})
    gauges.report({name: True})
    assert (gauge(name), gate.used) == (1, {name: True})
    one = guard.Guard(name, logging.getLogger)
    for _ in range(guard.MOST_IN_A_ROW):
        one.failed(ValueError("planted"))
    assert (gauge(name), gate.used) == (0, {name: False})
    entry.started()  # a client connects again
    assert gauge(name) == 0


@pytest.mark.falls_back
def test_chunks_that_are_off_after_failures_are_an_inactive_side(monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(gate, "used", {})
    gauges.report({"api chunks": True})
    assert gauge("api", "active", "side") == 1
    one = guard.Guard("api chunks", logging.getLogger)
    for _ in range(guard.MOST_IN_A_ROW):
        one.failed(ValueError("planted"))
    assert (gauge("api", "active", "side"), gauge("api chunks")) == (0, None)


def engine_client():
    class EngineClient:
        def create_zmq_client(self, model, mode):
            return model, mode

    return EngineClient


def test_what_is_put_in_is_told_when_the_server_starts(monkeypatch, caplog):
    """The engine's process imports the serving code, too, and its gauges count."""
    pytest.importorskip("prometheus_client")
    programs = [name for name, seam in PARTS.items() if seam.is_program]
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=PARTS[programs[0]].module)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("fd_postproc"))
    monkeypatch.setattr(gate, "used", {name: not seam.is_program for name, seam in PARTS.items()})
    put_in, watched = [], []
    monkeypatch.setattr(watchdog, "watch", watched.append)
    monkeypatch.setattr(gate, "put_in", lambda seam, one: put_in.append((seam, one)) or "another kind")

    cls = engine_client()

    async def serve():
        return cls().create_zmq_client(1, mode=2)

    restore = entry.install(SimpleNamespace(EngineClient=cls))
    assert cls().create_zmq_client(1, 2) == (1, 2)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    entry.started()  # in a program that is none of FastDeploy's
    assert put_in == []
    monkeypatch.setitem(sys.modules, "__main__", main)
    with caplog.at_level(logging.INFO):
        assert asyncio.run(serve()) == (1, 2)
    restore()
    assert not hasattr(cls.create_zmq_client, "__wrapped__")
    assert [type(one) for one in watched] == [cls]  # the one that serves
    assert put_in == [(PARTS[name], main) for name in programs]
    assert "leaves api responses to FastDeploy: another kind" in caplog.text
    assert {name: gauge(name) for name in PARTS} == {name: float(name not in programs) for name in PARTS}


@pytest.mark.falls_back
def test_a_start_that_cannot_be_said_disturbs_no_client(monkeypatch):
    monkeypatch.setattr(entry, "started", lambda: 1 // 0)
    restore = entry.install(SimpleNamespace(EngineClient=(cls := engine_client())))

    async def serve():
        return [cls().create_zmq_client(1, mode=2) for _ in range(4)]

    assert asyncio.run(serve()) == [(1, 2)] * 4
    restore()


@each("parts", [{"api detokenising": "no module"}, {}])
def test_the_doctor_warns_of_what_is_left(parts, monkeypatch):
    told = {"chat completions": {"compatible": True, "reason": ""}}
    side = Finding("info", "fastdeploy", "api", "API", "on", data={"active": True})
    tried = Finding("ok", "fastdeploy", "equal", "", "", data={"api": told, "api_left": parts})
    monkeypatch.setattr(doctor, "check_fastdeploy", lambda: [side] * 4)
    monkeypatch.setattr(doctor, "check_trial", lambda: [tried])
    found = doctor.examine(Scope(ids=frozenset([1])))
    assert [one.severity for one in found if one.code == "api-active"] == ["ok"]
    left = {one.subject: one for one in found if one.code == "part-left"}
    assert left.keys() == parts.keys()
    for name, one in left.items():
        assert one.severity == "warning"
        assert one.remedy
        assert SEAMS[name].gain in one.seen
        assert parts[name] in one.seen
