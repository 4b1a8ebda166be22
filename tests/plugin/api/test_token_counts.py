"""How many tokens a text has, by the tokenizers library, SentencePiece, and an unknown tokenizer."""

import pytest

from fd_postproc.fastdeploy.api.text import token_counts
from fd_postproc.fastdeploy.api.text.token_counts import CountingTokenizer
from tests.lib.restated_parsers import Tokenizer
from tests.lib.restated_tokenizers import Fast, Pieces
from tests.lib.rows import each

pytestmark = pytest.mark.framework
TEXTS = ["", " the", "a b c", "日本", "x" * 200, "<think>", "\n\n"]


class Layers(Fast):
    """The layers above the tokenizers library."""

    def tokenize(self, text):
        self._tokenizer.no_truncation()
        return self._tokenizer.encode(text, add_special_tokens=False).tokens

    def get_vocab(self):
        return self._tokenizer.get_vocab()


Layers.tokenize.__module__ = token_counts._LIBRARY_LAYER


def asked_of(owner, method):
    """What a method of an object is asked from now on."""
    asked, stock = [], getattr(owner, method)
    setattr(owner, method, lambda text, **options: asked.append(text) or stock(text, **options))
    return asked


@each("make", [Layers, Pieces, Tokenizer])
def test_the_same_number(make):
    own, theirs = CountingTokenizer(make()), make()
    for text in TEXTS * 2:
        assert len(own.tokenize(text)) == len(theirs.tokenize(text))
    with pytest.raises(TypeError):
        own.tokenize(None)


def test_a_text_is_split_once(monkeypatch):
    monkeypatch.setattr(token_counts, "_MOST", 4)
    tokenizer = Layers()
    asked = asked_of(tokenizer._tokenizer, "encode")
    own = CountingTokenizer(tokenizer)
    asked.clear()
    for _ in range(3):
        own.tokenize(" the")
        own.tokenize("x" * 100)  # too long to be remembered
    assert asked == [" the", *["x" * 100] * 3]
    for number in range(20):
        own.tokenize(str(number))
        assert len(own._counts) <= 4


def test_a_truncation_of_the_last_prompt_is_taken_off():
    tokenizer = Layers()
    own = CountingTokenizer(tokenizer)
    tokenizer._tokenizer.enable_truncation(1)
    assert len(own.tokenize("the quick fox")) == len(Layers().tokenize("the quick fox")) > 1
    assert tokenizer._tokenizer.truncation is None


def test_everything_else_is_the_tokenizers():
    tokenizer = Tokenizer()
    own = CountingTokenizer(tokenizer)
    assert own.texts is tokenizer.texts
    assert len(own) == len(tokenizer)
    assert own.get_vocab() is own.get_vocab()
    tokenizer.texts[99] = "new"
    assert own.get_vocab()["new"] == 99


def test_the_library_does_not_make_its_vocabulary_to_count_it(monkeypatch):
    """It would, for each request that calls tools."""
    tokenizer = Layers()
    library, size = tokenizer._tokenizer, len(tokenizer)
    library.get_vocab_size = lambda with_added: pytest.fail("made to be counted") if with_added else size
    monkeypatch.setattr(Layers, "__len__", lambda self: pytest.fail("made to be counted"))
    own = CountingTokenizer(tokenizer)
    first = own.get_vocab()
    assert own.get_vocab() is first
    assert len(own.tokenize("newest")) > 1
    library.add_tokens(["newest"])
    assert "newest" in own.get_vocab()
    assert len(own.tokenize("newest")) == 1
