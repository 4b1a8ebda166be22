"""Is ours used in a serving module?  Here in the double's serving modules."""

import asyncio
import contextlib
import importlib
import re
import sys
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import activation, entry, streams
from fd_postproc.fastdeploy.api.activation import CHAT, COMPLETION
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.events import counters
from fd_postproc.fastdeploy.gate import loading
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import SEAMS
from tests.lib.rows import each

msgpack = pytest.importorskip("msgpack")


@pytest.fixture
def load(monkeypatch):
    """A function that imports a serving module anew; nothing of it stays."""
    monkeypatch.setattr(loading, "_finder", loading._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in (CHAT, COMPLETION):
        monkeypatch.delitem(sys.modules, name, raising=False)
    counters.forget()
    yield importlib.import_module
    for name in (CHAT, COMPLETION):
        sys.modules.pop(name, None)


@pytest.fixture
def told(monkeypatch):
    """Gauges and log lines."""
    seen = SimpleNamespace(gauges=[], lines=[])
    log = SimpleNamespace(info=seen.lines.append, warning=seen.lines.append, error=seen.lines.append)
    monkeypatch.setattr(activation, "api_log", lambda: log)
    monkeypatch.setattr(activation, "export_active", lambda side, active: seen.gauges.append((side, active)))
    for name in ("counters", "log"):
        monkeypatch.setattr(f"fd_postproc.fastdeploy.events.{name}.api_log", lambda: log)
    return seen


def is_ours(module):
    """Whether a module has our stream: all or none."""
    owner, name, *_ = streams.LANES[module.__name__.rpartition(".")[2]]
    own = ["__wrapped__" in vars(vars(vars(module)[owner])[name]), module.asyncio is not asyncio]
    assert len({*own}) == 1, own
    return own[0]


# ---- What is decided -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CHAT, COMPLETION])
def test_known_code_is_replaced(name, load, told):
    entry.register()
    assert not told.gauges
    module = load(name)
    assert told.gauges == [("api", True)]
    (line,) = told.lines
    assert f"API side active for {activation.WHAT[name.rpartition('.')[2]]}" in line
    assert is_ours(module)


@each("variables", [{"FD_POSTPROC_API": "0"}, {"FD_POSTPROC_DISABLE": "1"}])
def test_switched_off(variables, load, told, monkeypatch):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    entry.register()
    assert loading._finder.actions == {}
    assert not is_ours(load(CHAT))
    assert (told.gauges, told.lines) == ([], [])


@pytest.mark.parametrize("name", [CHAT, COMPLETION])
def test_new_code_is_left_to_fastdeploy_and_named(name, load, told):
    module = load(name)
    owner, method, *_ = streams.LANES[name.rpartition(".")[2]]
    setattr(vars(module)[owner], method, lambda *told: None)
    entry._put_in("api chunks", module)
    (line,) = told.lines
    assert f"{method} is replaced by <lambda>" in line
    assert "test_activation.py" in line
    assert told.gauges == [("api", False)]
    assert module.asyncio is asyncio


def test_an_unknown_way_of_floats_and_what_cannot_be_told(load, monkeypatch):
    module = load(CHAT)
    for planted, words in (
        (lambda: None, "pydantic prints floats in none of the ways"),
        (lambda: 1 // 0, "cannot tell: ZeroDivisionError"),
    ):
        monkeypatch.setattr(streams, "float_style", planted)
        assert words in gate.put_in(SEAMS["api chunks"], module)


@each("chat, completion", [(True, True), (True, False), (False, True)])
def test_arrays_are_given_where_the_code_of_both_modules_that_takes_them_is_known(
    chat, completion, load, monkeypatch
):
    head = b"u\1\1\0" + (2).to_bytes(4, "little")
    message = msgpack.packb([msgpack.ExtType(_chunks.ARRAY, head + b"\5\6")])
    chat_is, completion_is = load(CHAT), load(COMPLETION)
    with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
        for cls, method, is_known in (
            (chat_is.OpenAIServingChat, "chat_completion_full_generator", chat),
            (completion_is.OpenAIServingCompletion, "completion_full_generator", completion),
        ):
            if not is_known:
                patch.setattr(cls, method, lambda *told: None)
        for module in (chat_is, completion_is):
            stack.callback(activation.install(module))
        assert isinstance(_chunks.unpack(message)[0], list) is not (chat and completion)
    assert _chunks.unpack(message) == [[5, 6]]


def test_what_is_installed_can_be_taken_out(load):
    module = load(COMPLETION)
    restore = activation.install(module)
    assert is_ours(module)
    restore()
    assert not is_ours(module)


def test_nothing_that_goes_wrong_keeps_fastdeploy_from_starting(load, monkeypatch, caplog):
    def fails(*arguments):
        raise OSError("no disk")

    monkeypatch.setattr(gate, "put_in", fails)
    entry.register()
    assert not is_ours(load(CHAT))
    assert "the API server keeps FastDeploy's own part: api chunks" in caplog.text
    monkeypatch.setattr(loading, "when_loaded", fails)
    entry.register()


@pytest.mark.parametrize("name", [CHAT, COMPLETION])
def test_what_goes_fastdeploys_way_is_counted(name, load, told, monkeypatch):
    counted = []
    metric = SimpleNamespace(labels=lambda reason: SimpleNamespace(inc=lambda _: counted.append(reason)))
    monkeypatch.setattr(counters, "counter", lambda name: metric)
    entry.register()
    load(name)
    assert counted == []
    assert counters.noted() == {}
    told.lines.clear()
    for _ in range(110):
        counters.note("a token id is no integer")
    assert counted == ["a token id is no integer"] * 110
    assert [re.search(r"once|\d+ times", line)[0] for line in told.lines] == ["once", "10 times", "100 times"]


def test_the_counter_is_prometheus_or_nothing(monkeypatch):
    monkeypatch.setattr(counters, "_made", {})
    monkeypatch.setitem(counters.LABELLED, "of_a_test", ("reason", "What a test counts"))
    made = counters.counter("of_a_test")
    assert made is counters.counter("of_a_test")
    made.labels("x").inc()
    assert made.labels("x")._value.get() == 1
    monkeypatch.setattr(counters, "_made", {})  # the name is taken now
    assert counters.counter("of_a_test") is None
