"""What FastDeploy loses of an answer is there, and nothing else changes."""

import importlib
import random
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy import array_readers
from fd_postproc.fastdeploy.api.text import joined_results, mends, views, ways
from fd_postproc.fastdeploy.api.text.answers import answers_of
from fd_postproc.fastdeploy.api.text.segments import _joined
from fd_postproc.fastdeploy.events import guard
from fd_postproc.fastdeploy.gate.judgements import gate
from tests.lib import restated_parsers
from tests.lib.known import remember
from tests.lib.random_answers import in_cuts as cuts
from tests.lib.restated_parsers import IDS, Calls, Processor, Thinks, of_fastdeploy, play, result
from tests.lib.rows import each

STATES = ("think_start", "think_end")
DAY = [100 + byte for byte in "日".encode()]
BROKEN = DAY[:2]


class Bytes(restated_parsers.Tokenizer):
    """Marks, words and bytes, decoded as PaddleFormers decodes them for fast tokenizers."""

    def __init__(self):
        super().__init__()
        self.texts = {one: text.encode() for one, text in self.texts.items()}
        self.texts |= {100 + byte: bytes([byte]) for byte in range(128, 256)}

    def get_vocab(self):
        return {text.decode(errors="replace"): one for one, text in self.texts.items()}

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(self.texts[one] for one in ids).decode(errors="replace")

    def decode_token(self, ids, prefix, read):
        return ways.decode_token(self.decode, ids, prefix, read)


class OneToken(Calls):
    """A plug-in's parser: right at one token a result, with a state of its own for each call."""

    def extract_tool_calls_streaming(self, previous, current, delta, previous_ids, current_ids, ids, request):
        self.seen = [*getattr(self, "seen", ()), delta]
        if delta in ("<tool_call>", "</tool_call>"):
            self.current_tool_id += delta == "<tool_call>"
            self.buffer = delta
            return None
        if self.buffer != "<tool_call>":
            return restated_parsers.DeltaMessage(content=delta)
        named = self.seen[-2] == "<tool_call>"
        return restated_parsers.DeltaMessage(tool_calls=[call(self.current_tool_id, delta, named and "f")])


class OneThought(Thinks):
    """One that looks at a delta as a whole."""

    def extract_reasoning_content_streaming(self, previous, current, delta, *others):
        if delta in ("<think>", "</think>"):
            return None
        kind = "content" if self.think_end_token in previous else "reasoning_content"
        return restated_parsers.DeltaMessage(**{kind: delta})


PAIRS = [(Thinks, Calls), (Thinks, None), (None, Calls)]
UNKNOWN = (None, OneToken)
JOINED_PAIRS = [
    *(*PAIRS, (None, None), UNKNOWN),
    *((OneThought, None), (OneThought, OneToken), (Thinks, OneToken)),
]


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """The kinds of mends that were counted."""
    monkeypatch.setenv("FD_POSTPROC_MENDS", "1")
    remember(monkeypatch, "api parsers", Thinks, Calls)
    kinds = []
    monkeypatch.setattr(mends, "count", kinds.append)
    return kinds


def install(base=Processor):
    return restated_parsers.install(base)[0]


def outputs_of(processor, results, state, request=None):
    processor.tool_parser_dict.clear()
    return [outputs for outputs, _ in play(processor, results, state=state, request=request)]


def client(outputs, shows_ids=False):
    """What is put together of a stream: reasoning, text, calls by number, other calls, and all text."""
    shown = [one for one in outputs if not one.get("skipped")]
    given = [call for one in shown for call in one.get("tool_calls") or ()]
    calls = {}
    for one in given:
        if isinstance(one, SimpleNamespace):
            calls[one.index] = calls.get(one.index, "") + (one.function.name or "") + one.function.arguments
    return (
        "".join(str(one.get("reasoning_content") or "") for one in (outputs if shows_ids else shown)),
        "".join(one["text"] or "" for one in shown),
        calls,
        [one for one in given if not isinstance(one, SimpleNamespace)],
        "".join(one["completion_tokens"] for one in outputs),
    )


def differing(own, single, tokens, are_joined):
    """Answers that the first says otherwise than the second does at one token a result."""
    draw = random.Random(48)
    for number in range(12):
        ids, state = draw.choices(tokens, k=draw.randint(2, 60)), draw.choice(STATES)
        shows_ids = number % 3 == 0
        request = SimpleNamespace(return_token_ids=shows_ids)
        expected = client(outputs_of(single, [[one] for one in ids], state, request), shows_ids)
        for _ in range(2):
            cut = [*cuts(draw, ids[:-1]), ids[-1:]] if are_joined else [*cuts(draw, ids)]  # an end is not
            made = client(outputs_of(own, cut, state, request), shows_ids)
            if made != expected:
                yield cut, state, made, expected


@each(
    "pair, mended, are_joined, in_bytes",
    [
        *((pair, 1, False, False) for pair in PAIRS),
        *((pair, *more, two) for pair in JOINED_PAIRS for more in ((0, True), (1, True)) for two in (0, 1)),
    ],
)
def test_several_tokens_a_result_are_as_one(pair, mended, are_joined, in_bytes, monkeypatch):
    """In results of a step, and in those that a stream interval has joined."""
    monkeypatch.setenv("FD_POSTPROC_MENDS", str(mended))
    monkeypatch.setattr(joined_results, "_are_expected", are_joined)
    if in_bytes:
        monkeypatch.setattr(ways, "ways_of", by_the_library)
    own, single = (
        cls(*pair, tokenizer=Bytes() if in_bytes else None)
        for cls in (install(), install() if mended else Processor)
    )
    tokens = [*IDS, *BROKEN, *DAY] if in_bytes else IDS
    assert next(differing(own, single, tokens, are_joined), None) is None


@each("pair", PAIRS)
def test_one_token_a_result_is_fastdeploys(pair):
    own, theirs = install()(*pair), Processor(*pair)
    for ids in ([10, 2, 3, 16], [11, 11]):
        for state in STATES:
            single = [[one] for one in ids]
            assert outputs_of(own, single, state) == outputs_of(theirs, single, state)


def by_the_library(tokenizer):
    return ways.Ways(tokenizer.decode)


@pytest.fixture
def processor():
    """A data processor of ours, in an answer's thought."""
    processor = install()()
    processor.model_status_dict["a"] = "think_start"
    return processor


@each(
    "ids, earlier, finished, pieces",
    [
        ([10, 11, 14], [], False, [[10, 11, 14]]),
        ([10, 11, 2, 11, 14], [], False, [[10, 11], [2], [11, 14]]),  # marks
        ([10, 12, 11, 14], [10], False, [[10, 12, 11, 14]]),
        ([2, 12, 13, 11, 12, 10], [], False, [[2], [12], [13], [11, 12, 10]]),  # line breaks behind one
        ([12, 12, 11], [10, 2, 13], False, [[12], [12], [11]]),
        ([12, 12, 11], [10, 2, 11], False, [[12, 12, 11]]),
        ([12, 12, 11], [], False, [[12, 12, 11]]),
        ([10, 11, 14], [10, 3, 11], False, [[10], [11], [14]]),  # a call
        ([10, 3, 11, 14], [], False, [[10], [3], [11], [14]]),
        ([10, 11, 14], [], True, [[10, 11], [14]]),  # an end
        ([10, 19, 20, 11], [], False, [[10], [19], [20], [11]]),  # marks in plain text
        ([10, 11, 99, 14], [], False, [[10, 11], [99], [14]]),  # no token: FastDeploy's method raises
    ],
)
def test_what_a_result_is_cut_into(processor, ids, earlier, finished, pieces):
    processor.decode_status.clear()
    processor.tool_parser_dict.clear()
    if earlier:
        processor.process_response_dict_streaming(result(earlier))
    own = views.views_of(processor).segments
    status = processor.decode_status.get("a")
    assert own.cut(ids, status, own._is_in_call(status), finished) == pieces


def test_what_is_not_the_texts_is_the_one_results(processor):
    rows = object()
    response = result([10, 2, 12, 11, 3], top_logprobs=rows, send_idx=0, reasoning_token_num=0)
    response["metrics"] = metrics = {"a": 1}
    outputs = response["outputs"]
    assert processor.process_response_dict_streaming(response) is response
    assert response["outputs"] is outputs
    assert outputs["top_logprobs"] is rows
    assert response["metrics"] is metrics
    assert (outputs["token_ids"], outputs["send_idx"]) == ([10, 2, 12, 11, 3], 0)
    assert outputs["reasoning_token_num"] == 1
    assert (outputs["reasoning_content"], outputs["text"]) == (" the", "a")
    assert outputs["completion_tokens"] == " the</think>\na<tool_call>"
    assert not response["finished"]


def seen_by_fastdeploy():
    """A class with ours, and the results that its own method is given."""
    given, stock = [], Processor.process_response_dict_streaming

    def streamed(self, response_dict, **kwargs):
        given.append(response_dict)
        return stock(self, response_dict, **kwargs)

    body = dict(vars(Processor), process_response_dict_streaming=streamed)
    return install(type("Base", (Processor,), body)), given


def test_results_that_are_not_cut_are_given_as_they_are(monkeypatch, counted):
    cls, given = seen_by_fastdeploy()
    processor = cls(*PAIRS[0])
    processor.model_status_dict["a"] = "think_start"
    for ids in ([10], [10, 11], [2], []):
        response = result(ids)
        processor.process_response_dict_streaming(response)
        assert given.pop() is response
        assert not given
    assert counted == []


@each(
    "ids, releases, kinds",
    [
        (BROKEN, mends.END, [mends.END]),
        ([*BROKEN, 11], mends.END, [mends.END]),  # FastDeploy holds back two characters
        ([*BROKEN, 11], mends.MARK, [mends.MARK]),
        ([*BROKEN, 11, 11], mends.END, []),
        ([*BROKEN, 11, 11], "", []),
    ],
)
def test_what_would_have_been_held_back_is_counted(ids, releases, kinds, processor, counted, monkeypatch):
    monkeypatch.setattr(ways, "ways_of", by_the_library)
    counted.clear()
    text = answers_of(type(processor).ids2tokens).advance(Bytes(), [0, 0, [], ""], [*ids], releases)
    assert (text.replace("a", ""), counted) == ("\ufffd", kinds)


def call(index, arguments=None, name=None):
    function = SimpleNamespace(name=name, arguments=arguments)
    return SimpleNamespace(index=index, id="x" if name else None, function=function)


def test_deltas_of_one_call_are_one():
    """A delta of another call stays apart, also one that does not say which; what was given out stays."""
    calls = [call(0, '{"a', "f"), None, call(0, '": 1}'), call(1, "{"), call(2, name="g"), call(2)]
    parts = [{"text": None, "completion_tokens": "", "tool_calls": one and [one]} for one in calls]
    made = _joined(parts, False)["tool_calls"]
    assert [(one.index, one.function.name, one.function.arguments) for one in made] == [
        (0, "f", '{"a": 1}'),
        (1, None, "{"),
        (2, "g", None),
        (2, None, None),
    ]
    assert (calls[0].function.arguments, calls[2].function.arguments) == ('{"a', '": 1}')


def test_an_answer_without_a_thought_is_an_answer(monkeypatch, counted):
    @of_fastdeploy
    class Nothing(Thinks):
        def extract_reasoning_content(self, text, request, status):
            return None, text

    remember(monkeypatch, "api parsers", Nothing)
    with pytest.raises(TypeError):
        whole(Processor(Nothing, None), [[10], [11]])
    outputs = whole(install()(Nothing, None), [[10], [11]])
    assert (outputs["text"], outputs["reasoning_content"]) == (" thea", None)
    assert outputs["reasoning_token_num"] == 0
    assert counted == [mends.THOUGHT]


def whole(processor, results):
    return [*play(processor, results, stream=False)][-1][0]


# ---- Results that a stream interval has joined -------------------------------------------------------------


@each(
    "pair, mended, speculates, environment, takes",
    [
        (PAIRS[0], 1, False, {}, True),
        (PAIRS[0], 1, True, {}, True),
        ((None, None), 1, True, {}, True),
        (PAIRS[0], 0, False, {}, True),
        (PAIRS[0], 0, True, {}, False),
        ((None, None), 0, True, {}, False),
        (UNKNOWN, 1, False, {}, True),
        (UNKNOWN, 1, True, {}, False),
        (UNKNOWN, 1, None, {}, False),  # it is not known whether it does
        (PAIRS[0], 1, False, {"FD_USE_HF_TOKENIZER": True}, False),
        (PAIRS[0], 1, False, {"FD_ENABLE_RETURN_TEXT": True}, False),
    ],
)
def test_who_takes_joined_results_says_so(pair, mended, speculates, environment, takes, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_MENDS", str(mended))
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "4")
    monkeypatch.setattr(joined_results, "_are_expected", False)
    for name, value in environment.items():
        monkeypatch.setattr(restated_parsers.envs, name, value, raising=False)
    path = f"/dev/shm/response_{random.randrange(1 << 40)}_w1.pull"
    config = None if speculates is None else SimpleNamespace(method="mtp" if speculates else None)
    client = SimpleNamespace(
        data_processor=install()(*pair),
        connection_manager=SimpleNamespace(pull_ipc_path=path),
        fd_config=SimpleNamespace(speculative_config=config),
    )
    reason = joined_results.announce_or_withdraw(client, views.why_not_joined)
    assert (reason is None) == takes, reason
    assert joined_results.announce_or_withdraw(client, views.why_not_joined) == reason  # the name is its own
    assert array_readers.has_announced(path, array_readers.JOINED) == takes
    assert joined_results.are_expected() == takes
    joined_results.withdraw()
    assert joined_results.are_expected() == takes  # some are on their way
    assert not array_readers.has_announced(path, array_readers.JOINED)
    client.data_processor = Processor(*pair)  # FastDeploy's own
    assert joined_results.announce_or_withdraw(client, views.why_not_joined)
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "0")
    assert joined_results.announce_or_withdraw(client, views.why_not_joined) is None
    assert not joined_results.are_expected()


def detokenising_fails(processor):
    answers_of(type(processor).ids2tokens).guard.failed(ValueError("planted"))


def parsing_fails(processor):
    vars(processor).pop("reasoning_parser", None)
    with pytest.raises(AttributeError, match="reasoning_parser"):
        processor.process_response_dict_streaming(result([10]), stream=True)


@each("fails", [detokenising_fails, parsing_fails])
@pytest.mark.falls_back
def test_who_falls_back_takes_no_joined_results_any_more(fails, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "4")
    monkeypatch.setattr(joined_results, "_are_expected", False)
    monkeypatch.setattr(gate, "used", {})
    path = f"/dev/shm/response_{random.randrange(1 << 40)}_w2.pull"
    client = SimpleNamespace(
        data_processor=install()(Thinks, None), connection_manager=SimpleNamespace(pull_ipc_path=path)
    )
    assert joined_results.announce_or_withdraw(client, views.why_not_joined) is None
    for _ in range(guard.MOST_IN_A_ROW):
        assert array_readers.has_announced(path, array_readers.JOINED)
        fails(client.data_processor)
    assert not array_readers.has_announced(path, array_readers.JOINED)


# ---- Text that waits for the rest of a character -----------------------------------------------------------


@pytest.fixture
def byte_level(monkeypatch):
    monkeypatch.setattr(ways, "ways_of", by_the_library)


WAITS = [[10], [11, *BROKEN]]
THOUGHT = (Thinks, None)


@each(
    "pair, results, reasoning, text, kinds",
    [
        *((pair, WAITS, " thea\ufffd", "", [mends.END]) for pair in ((Thinks, Calls), THOUGHT)),
        *((pair, WAITS, "", " thea\ufffd", [mends.END]) for pair in ((None, Calls), (None, None))),
        (THOUGHT, [*WAITS, [2], [11]], " thea\ufffd", "a", [mends.MARK]),  # no result is cut
        (THOUGHT, [[10, 11, *BROKEN, 2, 11], [10]], " thea\ufffd", "a the", [mends.MARK, mends.SEGMENTS]),
        (THOUGHT, [[10], [2]], " the", "", []),
    ],
)
def test_text_that_waits_is_given_before_a_mark_and_at_the_end(
    pair, results, reasoning, text, kinds, byte_level, counted
):
    counted.clear()
    said = client(outputs_of(install()(*pair, tokenizer=Bytes()), results, "think_start"))
    assert said[:2] == (reasoning, text)
    assert said[-1].replace("</think>", "") == reasoning + text
    assert counted == kinds


@each(
    "ids, text",
    [
        ([3, *BROKEN], ""),
        ([3, 11, *BROKEN], ""),
        ([3, 11, *BROKEN, 4], ""),
        ([3, *DAY], "日"),  # FastDeploy shows the last token's text, also where its parser shows none
        ([3, 10, 11], "a"),
        (BROKEN, "\ufffd"),
        ([11, *BROKEN, 4], "a\ufffd"),
    ],
)
@each("count", [1, 2, 9])
def test_what_waits_at_the_end_is_not_shown_where_a_parser_shows_no_text(ids, text, count, byte_level):
    cut = [ids[at : at + count] for at in range(0, len(ids), count)]
    said = client(outputs_of(install()(Thinks, None, tokenizer=Bytes()), cut, "think_end"))
    assert said[:2] == ("", text)


def test_text_that_waits_at_the_end_of_a_whole_answer(byte_level, counted):
    assert whole(install()(None, Calls, tokenizer=Bytes()), WAITS)["text"] == " thea\ufffd"
    assert counted == [mends.END]


def test_a_mended_character_is_counted(monkeypatch, counted):
    """Of a library's tokenizer with byte fallback."""
    pytest.importorskip("tokenizers")
    tokenizer = importlib.import_module("tests.lib.restated_tokenizers").Fast("metaspace")
    library = tokenizer._tokenizer
    found = ways.Ways(library.decode, ways._bytes_among_pieces(tokenizer, library))
    monkeypatch.setattr(ways, "ways_of", lambda tokenizer: found)
    words = tokenizer.ids_of("one two")
    broken = [library.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff"]
    said = outputs_of(install()(None, None, tokenizer=tokenizer), [broken, *([one] for one in words)], None)
    assert "".join(one["text"] for one in said).startswith("é\ufffd")
    assert counted == [mends.BROKEN]


def test_the_switch_leaves_everything_to_fastdeploy(monkeypatch, byte_level, counted):
    monkeypatch.setenv("FD_POSTPROC_MENDS", "0")
    draw, sides = random.Random(5), [cls(tokenizer=Bytes()) for cls in (install(), Processor)]
    for _ in range(20):
        cut = [*cuts(draw, draw.choices([*IDS, *BROKEN], k=30))]
        for state in STATES:
            own, theirs = (outputs_of(one, cut, state) for one in sides)
            assert own == theirs
    assert counted == []


@each("results", [[[10, 2], [11, *DAY, *BROKEN], [11]], [[10, 2, 11], [*DAY, *BROKEN, 11]]])
def test_whole_characters_do_not_wait_for_the_last_token(byte_level, results):
    """A parser may hold what came before, and what comes with an end is shown."""
    cls, given = seen_by_fastdeploy()
    outputs_of(cls(Thinks, None, tokenizer=Bytes()), results, "think_start")
    texts = [response["outputs"]["completion_tokens"] for response in given]
    assert "".join(texts) == " the</think>a日\ufffda"
    assert [text for text in texts if text][-1] == "\ufffda"
