"""Is ours used in a serving module?  Here in the double's serving modules."""

import base64
import contextlib
import importlib
import sys
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy import loading, logs, notes, seams
from fd_postproc.fastdeploy.api import activation, entry
from fd_postproc.fastdeploy.api.chunks import _chunks, building_blocks
from fd_postproc.fastdeploy.api.chunks.building_blocks import (
    CHAT,
    COMPLETION,
    PROTOCOL,
    Blocks,
    blocks_of,
    in_use,
    install,
)
from tests.lib.fakes import TwoOfThree
from tests.lib.rows import each

msgpack = pytest.importorskip("msgpack")

METHODS = {
    CHAT: ("OpenAIServingChat", "_create_chat_logprobs"),
    COMPLETION: ("OpenAIServingCompletion", "_create_completion_logprobs"),
}


@pytest.fixture
def load(monkeypatch):
    """A function that imports a serving module anew; nothing of it stays."""
    monkeypatch.setattr(loading, "_finder", loading._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in (CHAT, COMPLETION):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in (CHAT, COMPLETION):
        sys.modules.pop(name, None)
    notes.tell_notes_to(None)


@pytest.fixture
def told(monkeypatch):
    """Gauges and log lines."""
    seen = SimpleNamespace(gauges=[], lines=[])
    log = SimpleNamespace(info=seen.lines.append, warning=seen.lines.append, error=seen.lines.append)
    monkeypatch.setattr(activation, "api_log", lambda: log)
    monkeypatch.setattr(activation, "export_active", lambda side, active: seen.gauges.append((side, active)))
    monkeypatch.setattr(logs, "api_log", lambda: log)
    return seen


def is_ours(module):
    """Whether a module has our parts: all or none."""
    owner, method = METHODS[module.__name__]
    own = [vars(module)[name] is not vars(sys.modules[PROTOCOL])[name] for name in blocks_of_names(module)]
    own.append("__wrapped__" in vars(vars(vars(module)[owner])[method]))
    assert len(set(own)) == 1, own
    return own[0]


def blocks_of_names(module):
    by_fastdeploy = building_blocks._BUILT_BY_FASTDEPLOY
    return [name for name in vars(module) if name in building_blocks.MODELS and name not in by_fastdeploy]


# ---- What is decided -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "made"), [(CHAT, "LogProbEntry"), (COMPLETION, "CompletionLogprobs")])
def test_classes_that_ours_write_without_a_stand_in_are_plain(name, made, load, monkeypatch):
    module = load(name)
    monkeypatch.setitem(vars(module)[made].__pydantic_decorators__.field_validators, "x", object())
    assert activation.decide(module) == (None, f"{made} has field validators")


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


def test_a_wrapped_generator_is_named_also_where_the_other_module_is_taken(load, told, monkeypatch):
    monkeypatch.setattr(seams, "_taken", set())
    monkeypatch.setattr(entry, "_told", set())
    for name in (COMPLETION, CHAT):
        module = load(name)
        if name == CHAT:
            module.OpenAIServingChat.chat_completion_stream_generator = lambda *told: None
        entry._put_in("lane", module)
    (line,) = told.lines
    assert "leaves api lane to FastDeploy" in line
    assert "chat_completion_stream_generator is replaced by <lambda>" in line


def test_new_code_is_left_to_fastdeploy_and_named(load, told):
    module = load(CHAT)
    stock = module.OpenAIServingChat._create_chat_logprobs

    def _create_chat_logprobs(
        self, output_top_logprobs, request_logprobs=None, request_top_logprobs=None, request_decode_flag=True
    ):
        return stock(self, output_top_logprobs, request_logprobs, request_top_logprobs, request_decode_flag)

    module.OpenAIServingChat._create_chat_logprobs = _create_chat_logprobs
    activation.settle(module)
    (line,) = told.lines
    assert (
        "left to FastDeploy: _create_chat_logprobs (OpenAIServingChat._create_chat_logprobs is replaced"
        in line
    )
    assert "test_activation.py" in line
    assert module.OpenAIServingChat._create_chat_logprobs is _create_chat_logprobs


def test_a_module_that_names_nothing_known_and_an_unknown_way_of_floats(load, monkeypatch):
    module = load(CHAT)
    for decided, words in (
        (SimpleNamespace(__name__=CHAT), "names none of the parts known here"),
        (module, "pydantic prints floats in none of the ways"),
    ):
        blocks, reason = activation.decide(decided)
        assert blocks is None
        assert words in reason
        monkeypatch.setattr(building_blocks, "float_style", lambda: None)


@each(
    "name, wanted",
    [
        *((CHAT, (True, columns, texts)) for columns in (0, 1, 3, 5, None) for texts in (True, False)),
        *((COMPLETION, (columns,)) for columns in (0, 1, 3, 5, None)),
        (CHAT, (False, 3, True)),
    ],
)
def test_an_answer_gets_what_it_asks_for(name, wanted, load):
    """As many alternatives, with texts or without, or none."""
    module, (owner, method) = load(name), METHODS[name]
    handler = vars(module)[owner](SimpleNamespace(data_processor=Processor("x")))
    top = [[[7, 8, 9, 10, 11, 12]], [[-0.5, -1.0, -2.0, -3.0, -4.0, -5.0]], [1]]
    made = blocks_of(module).methods[owner, method](handler, top, *wanted)
    right = getattr(handler, method)(top, *wanted)
    assert isinstance(made, _chunks.StandIn) or right is None
    assert (made and made.model_dump()) == (right and right.model_dump())


def encodes(self, numpy):
    experts = self["routing_data"]
    if not isinstance(experts, numpy.ndarray):
        experts = numpy.array(experts)
    return base64.b64encode(experts.tobytes()).decode()


@each(
    "method, accepts",
    [(encodes, True), (lambda self: self["routing_data"], False), (lambda self: self, True), (None, True)],
)
def test_arrays_are_given_where_the_code_takes_them(method, accepts, load, monkeypatch):
    module = load(CHAT)
    monkeypatch.setattr(module.OpenAIServingChat, "chat_completion_full_generator", method, raising=False)
    assert blocks_of(module).arrays is accepts


@each("chat, completion", [(True, True), (True, False), (False, True)])
def test_arrays_are_given_where_both_modules_take_them(chat, completion):
    head = b"u\1\1\0" + (2).to_bytes(4, "little")
    message = msgpack.packb([msgpack.ExtType(_chunks.ARRAY, head + b"\5\6")])
    sides = [(SimpleNamespace(__name__=CHAT), chat), (SimpleNamespace(__name__=COMPLETION), completion)]
    with contextlib.ExitStack() as stack:
        for module, takes in sides:
            stack.enter_context(in_use(module, Blocks(arrays=takes)))
        assert isinstance(_chunks.unpack(message)[0], list) is not (chat and completion)
    assert _chunks.unpack(message) == [[5, 6]]


def test_what_is_installed_can_be_taken_out(load):
    module = load(COMPLETION)
    restore = install(module, blocks_of(module))
    assert is_ours(module)
    restore()
    assert not is_ours(module)


def test_nothing_that_goes_wrong_keeps_fastdeploy_from_starting(load, monkeypatch, caplog):
    def fails(*arguments):
        raise OSError("no disk")

    monkeypatch.setattr(activation, "settle", fails)
    entry.register()
    assert not is_ours(load(CHAT))
    assert "the API server's side is off" in caplog.text
    monkeypatch.setattr(loading, "when_loaded", fails)
    entry.register()


# ---- In use --------------------------------------------------------------------------------------------


class Processor:
    def __init__(self, word):
        self.word, self.tokenizer = word, self

    def process_logprob_response(self, token_ids, **options):
        return f"{self.word}{token_ids}"

    def convert_ids_to_tokens(self, token):
        return self.word


TOP = [[[1, 2]], [[-0.5, -1.5]], [1]]


def asked(module, processor, top=TOP, columns=1):
    owner, method = METHODS[module.__name__]
    handler = vars(module)[owner](SimpleNamespace(data_processor=processor))
    return getattr(handler, method)(top, *([True] if module.__name__ == CHAT else []), columns)


@each("name", [CHAT, COMPLETION])
def test_each_processor_has_texts_of_its_own(name, load, told):
    entry.register()
    module = load(name)
    one, other = Processor("one"), Processor("other")
    for processor in (one, other, one, Processor("third")):
        shown = asked(module, processor).model_dump_json()
        assert f'"{processor.word}[1]' in shown
        assert f'"{processor.word}[2]' in shown


@pytest.mark.parametrize(("name", "function"), [(CHAT, "chat_logprobs"), (COMPLETION, "completion_logprobs")])
@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(name, function, load, told, monkeypatch):
    logprobs = TwoOfThree(vars(building_blocks)[function])
    monkeypatch.setattr(building_blocks, function, logprobs)
    entry.register()
    module = load(name)
    assert len({asked(module, Processor("x")).model_dump_json() for _ in range(12)}) == 1
    assert logprobs.calls == 12


@pytest.mark.parametrize("name", [CHAT, COMPLETION])
@pytest.mark.falls_back
def test_what_goes_fastdeploys_way_is_counted(name, load, told, monkeypatch):
    counted = []
    metric = SimpleNamespace(labels=lambda reason: SimpleNamespace(inc=lambda _: counted.append(reason)))
    monkeypatch.setattr(logs, "counter", lambda name, text, label: metric)
    entry.register()
    module = load(name)
    assert counted == []
    assert notes.noted() == {}
    told.lines.clear()
    processor = Processor("x")
    for _ in range(10):
        assert asked(module, processor, [[[1.5]], [[-0.5]], [1]]).model_dump_json()
    assert len(counted) == 10
    assert [line.partition("once")[1] or line.partition("10 times")[1] for line in told.lines] == [
        "once",
        "10 times",
    ]
    assert sum(notes.noted().values()) == 10
    monkeypatch.setattr(Processor, "process_logprob_response", None)
    assert asked(module, processor) is None
    assert notes.noted()["the tokenizer refuses a token id"] == 1


def test_the_counter_is_prometheus_or_nothing(monkeypatch):
    monkeypatch.setattr(logs, "_counters", {})
    of_a_test = ("of_a_test", "What a test counts", "reason")
    made = logs.counter(*of_a_test)
    assert made is logs.counter(*of_a_test)
    made.labels("x").inc()
    assert made.labels("x")._value.get() == 1
    monkeypatch.setattr(logs, "_counters", {})  # the name is taken now
    assert logs.counter(*of_a_test) is None
