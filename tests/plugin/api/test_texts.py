"""The table of what token ids say."""

import pytest

from fd_postproc.fastdeploy.api.chunks._chunks import Texts, Unknown
from fd_postproc.fastdeploy.api.chunks.token_spelling import chat_spelling, completion_spelling
from tests.lib.rows import each


class Processor:
    def __init__(self, texts):
        self.texts, self.asked, self.tokenizer = texts, [], self

    def process_logprob_response(self, token_ids, clean_up_tokenization_spaces):
        assert clean_up_tokenization_spaces is False
        (token,) = token_ids
        self.asked.append(token)
        return self.texts[token]

    def convert_ids_to_tokens(self, token):
        return f"Ġ{token}"


def test_an_id_is_asked_for_once_but_for_one_that_is_refused():
    processor = Processor({7: " the", 8: "é"})
    texts = Texts(chat_spelling(processor))
    assert [texts.shown(token) for token in (7, 8, 7, 7, 8)] == [" the", "é", " the", " the", "é"]
    for _ in range(2):
        with pytest.raises(KeyError):
            texts.shown(9)
    assert processor.asked == [7, 8, 9, 9]
    assert texts.known == 2


@each(
    "spelling, shown",
    [(chat_spelling, "bytes:\\x61\\xef\\xbf\\xbd"), (completion_spelling, "bytes:\\xc4\\xa0\\x37")],
)
def test_a_text_that_is_no_utf8_is_shown_in_bytes(spelling, shown):
    assert Texts(spelling(Processor({7: "a\ufffd"}))).shown(7) == shown


def test_the_memory_is_bounded():
    texts = Texts(chat_spelling(Processor(dict.fromkeys(range(10000), "x" * 50))), limit=200_000)
    with pytest.raises(Unknown, match="full"):
        [texts.shown(token) for token in range(10_000)]
    known = texts.known
    assert 100 < known < 2000
    assert texts.size <= 200_000 + 1000
    assert texts.shown(0) == "x" * 50  # what is in it stays


@each("token", [-1, 1 << 22])
def test_what_is_no_id_of_a_vocabulary_is_not_asked_for(token):
    with pytest.raises(Unknown):
        Texts(pytest.fail).shown(token)


@each("text", ["\ud800", None, b"bytes", 5])
def test_a_text_that_is_none_is_not_kept(text):
    texts = Texts(lambda token: (text, text))
    with pytest.raises(Unknown):
        texts.shown(3)
    assert texts.known == 0


def test_a_spelling_that_asks_again_is_kept_once():
    def spell(token):
        if depth[0] < 1:
            depth[0] += 1
            assert texts.shown(token) == "inner"
        return "inner", "inner"

    depth = [0]
    texts = Texts(spell)
    assert texts.shown(5) == "inner"
    assert texts.known == 1
