"""Log-probabilities in one pass, against an object for each candidate."""

import copy
import json
import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api.chunks._chunks import (
    ChatScores,
    CompletionScores,
    Texts,
    Unknown,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from fd_postproc.fastdeploy.api.chunks.token_spelling import chat_spelling, completion_spelling
from tests.lib.rows import each
from tests.lib.search import examples
from tests.restated.api.logprobs import Steps

STYLE = float_style()
TEXTS = [" the", "é", "\ufffd", '\n"\\/', "\x07\x1f\x7f", "", "日本", "😀", "a\ufffd", "\u2028", " the", "é"]


class Processor:
    def __init__(self):
        self.tokenizer = self

    def process_logprob_response(self, token_ids, **options):
        return TEXTS[token_ids[0]]

    def convert_ids_to_tokens(self, token):
        return f"Ġ{token % 3}"


PROCESSOR = Processor()
STEPS = Steps(
    lambda token: PROCESSOR.process_logprob_response([token]),
    PROCESSOR.convert_ids_to_tokens,
    lambda token: "",
)


def chat(top, most, texts=True, processor=PROCESSOR):
    return ChatScores.of(top, most, Texts(chat_spelling(processor)) if texts else None)


def completion(top, most):
    return CompletionScores.of(top, most, Texts(completion_spelling(PROCESSOR)))


def written(made):
    """What is written of log-probabilities, in both styles; None for a float that Python's json refuses."""
    if made is None:
        return "null", "null"
    try:
        whole = b"".join(made.pieces()).decode()
    except ValueError:
        whole = None
    return made.json(STYLE), whole


def fastdeploys(model):
    """The same out of FastDeploy's model."""
    if model is None:
        return "null", "null"
    try:
        whole = json.dumps(model.model_dump(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        whole = None
    return model.model_dump_json(exclude_unset=True), whole


scores = st.one_of(
    st.floats(-30, 0, width=32), st.floats(width=32), st.sampled_from([math.nan, -math.inf, -0.0, 1e-7])
)


@st.composite
def tops(draw):
    """Rows of all shapes, with as many scores as ids mostly."""
    rows = draw(st.integers(1, 4))
    ids = [draw(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=8)) for _ in range(rows)]
    slack = draw(st.sampled_from([0, 0, 0, 1]))
    lists = [draw(st.lists(scores, min_size=len(row), max_size=len(row) + slack)) for row in ids]
    return [ids, lists, list(range(rows))]


columns = st.one_of(st.none(), st.integers(-2, 9), st.just(1 << 70))


@given(tops(), columns, st.booleans())
def test_chat(top, most, texts):
    assert written(chat(top, most, texts)) == fastdeploys(STEPS.chat(copy.deepcopy(top), most, texts))


@given(tops(), columns)
def test_completion(top, most):
    assert written(completion(top, most)) == fastdeploys(STEPS.completion(copy.deepcopy(top), most))


@examples(20)
@given(st.lists(tops(), min_size=1, max_size=70), st.integers(0, 5), st.booleans())
def test_many_results(results, most, packed):
    """As an answer that is not streamed gathers them; and one that is not known leaves what is there."""
    in_chat, in_completion = ours = [
        cls(most, Texts(spelling(PROCESSOR)))
        for cls, spelling in ((ChatScores, chat_spelling), (CompletionScores, completion_spelling))
    ]
    for number, top in enumerate(results):
        given_top = unpack(msgpack.packb({"top_logprobs": top}))["top_logprobs"] if packed else top
        for made in ours:
            made.add(given_top)
            if number % 3 == 0:
                with pytest.raises(Unknown):
                    made.add([[*top[0], [1 << 40]], [*top[1], [-0.5]], [*top[2], 1]])
    gathered = [[row for top in results for row in top[i]] for i in range(3)]
    assert written(in_chat) == fastdeploys(STEPS.chat(gathered, most, True))
    assert written(in_completion) == fastdeploys(STEPS.completion(gathered, most))


ODD = [
    *(([[0]], [[True]]), ([[0]], [[None]]), ([[0]], [["-0.5"]]), ([[0]], [[1 << 60]]), ([["0"]], [[-0.5]])),
    *(([[0.0]], [[-0.5]]), ([[-1]], [[-0.5]]), ([(0,)], [[-0.5]]), ([[0]], [(-0.5,)]), ([[]], [[-0.5]])),
    *(([[0]], [[]]), ([[0], []], [[-0.5], []]), ([[0]], [[-1]])),
]
OTHERS = [[[[0]], [[-0.5]]], [[[0]], [[-0.5]], [1], [2]], "abc", {"a": 1}, [1, 2, 3]]


@each("top", [*([ids, scores, [1] * len(ids)] for ids, scores in ODD), *OTHERS])
def test_what_is_not_known_is_left_to_fastdeploy(top):
    for build in chat, completion:
        with pytest.raises(Unknown):
            build(top, 5)


def test_what_fastdeploy_passes_over_and_what_is_not_asked_for():
    for top in ([[], [], []], [[[0]], [[-0.5]], []], None):
        assert chat(top, 5) is completion(top, 5) is None
    for columns in (None, -1):
        assert chat([[[0]], [[-0.5]], [1]], columns) is None


def test_lists_that_a_tokenizer_changes_meanwhile():
    """The lists are read before a tokenizer is asked."""

    class Meddler(Processor):
        def __init__(self, change, top):
            super().__init__()
            self.change, self.top = change, top

        def process_logprob_response(self, token_ids, **options):
            self.change(self.top)
            return "x"

    for change in (
        lambda top: (top[0][0].clear(), top[1][0].clear()),
        lambda top: (top[0][1].extend([1] * 10_000), top[1][1].extend([-0.5] * 10_000)),
        lambda top: top[0].__delitem__(slice(1, None)),
    ):
        top = [[[0, 1, 2], [3, 4]], [[-0.5] * 3, [-0.5] * 2], [1, 1]]
        made = json.loads(chat(top, 1 << 40, processor=Meddler(change, top)).json(STYLE))
        assert [len(entry["top_logprobs"]) for entry in made["content"]] == [2, 1]


@each("refused, raised", [(399, KeyError), (-1, Unknown), (1 << 22, Unknown)])
def test_an_id_of_many_that_is_refused_is_refused_before_anything_is_written(refused, raised):
    """Else a body that has begun would break off."""

    def spell(token):
        if token == refused:
            raise KeyError(token)
        return "x", ""

    top = [[[token] for token in (*range(300, 399), refused)], [[-0.5]] * 100, [1] * 100]
    with pytest.raises(raised):
        CompletionScores.of(top, 0, Texts(spell))


def test_a_tokenizer_that_writes_such_a_map_meanwhile():
    """Equal texts are found by marks on the cached texts, which the other map sets, too."""

    def spell(token):
        if token == 3:
            answer([[[1, 2]], [[-1.0, -2.0]], [1]]).json(STYLE)
        return f"t{token}", ""

    def answer(top):
        return CompletionScores.of(top, 9, texts)

    texts = Texts(spell)
    text = answer([[[1, 2, 3, 9]] * 64, [[-1.5, -2.5, -3.5, -4.5]] * 64, [1] * 64]).json(STYLE)
    for shown in json.loads(text)["top_logprobs"]:
        assert shown == {"t1": -1.5, "t2": -2.5, "t3": -3.5, "t9": -4.5}
