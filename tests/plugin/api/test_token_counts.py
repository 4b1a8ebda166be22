"""How many tokens a text has."""

import sys
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api.text import token_counts
from fd_postproc.fastdeploy.api.text.token_counts import CountingTokenizer
from tests.lib.restated_parsers import Tokenizer
from tests.lib.rows import each

TEXTS = ["", " the", "a b c", "日本", "x" * 200, "<think>", "\n\n"]


class Library:
    """The tokenizers library's Tokenizer."""

    def __init__(self, dropout=None):
        self.model = SimpleNamespace(dropout=dropout)
        self.truncation = self.padding = None
        self.asked, self.added = [], []

    def encode(self, text, add_special_tokens=True):
        self.asked.append(text)
        return [text] if text in self.added else text[::2]


class Fast(Tokenizer):
    """The layers above it."""

    def __init__(self, library):
        super().__init__()
        self._tokenizer = library

    def tokenize(self, text):
        self._tokenizer.truncation = self._tokenizer.padding = None
        return list(text[::2])


Fast.tokenize.__module__ = token_counts._LIBRARY_LAYER


@pytest.fixture(autouse=True)
def library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Library))


class Sampled(Tokenizer):
    """Written in Python, and nothing is known of it."""


class Pieces(Tokenizer):
    """ERNIE's, above a SentencePieceProcessor."""

    def __init__(self, sampling=False):
        super().__init__()
        self.sp_model = Model()
        self.sp_model._enable_sampling = sampling


class Model:
    pass


@each("make", [lambda: Fast(Library()), Sampled, Pieces, lambda: Fast(Library(0.1))])
def test_the_same_number(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=Model))
    own, theirs = CountingTokenizer(make()), make()
    for text in TEXTS * 2:
        assert len(own.tokenize(text)) == len(theirs.tokenize(text))
    with pytest.raises(TypeError):
        own.tokenize(None)


def test_a_text_is_split_once():
    tokenizer = Fast(Library())
    own = CountingTokenizer(tokenizer)
    tokenizer._tokenizer.asked.clear()
    for _ in range(3):
        own.tokenize(" the")
        own.tokenize("x" * 100)  # too long to be remembered
    assert tokenizer._tokenizer.asked == [" the", *["x" * 100] * 3]


def test_what_may_change_is_asked_each_time_and_counts_by_chance_are_not_kept(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=Model))
    for tokenizer, times in ((Sampled(), 3), (Pieces(sampling=True), 3), (Pieces(), 1)):
        own = CountingTokenizer(tokenizer)
        tokenizer.asked.clear()
        for _ in range(3):
            own.tokenize(" the")
        assert tokenizer.asked == [" the"] * times
    assert token_counts.counter(Fast(Library())) is not None
    assert token_counts.counter(Fast(Library(dropout=0.1))) is None


def test_a_truncation_of_the_last_prompt_is_taken_off_and_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(token_counts, "_MOST", 4)
    tokenizer = Fast(Library())
    own = CountingTokenizer(tokenizer)
    tokenizer._tokenizer.truncation = {"max_length": 1}
    assert len(own.tokenize("abcdef")) == 3
    assert tokenizer._tokenizer.truncation is None
    for number in range(20):
        own.tokenize(str(number))
        assert len(own._counts) <= 4


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
    library, added = Library(), {0: "<s>"}
    library.get_vocab_size = lambda with_added: 9 if not with_added else pytest.fail("made to be counted")
    library.get_added_tokens_decoder = lambda: added
    tokenizer = Fast(library)
    monkeypatch.setattr(Fast, "__len__", lambda self: pytest.fail("made to be counted"))
    own = CountingTokenizer(tokenizer)
    first = own.get_vocab()
    assert own.get_vocab() is first
    assert len(own.tokenize("new")) == 2
    added[1], tokenizer.texts[99], library.added = "new", "new", ["new"]
    assert own.get_vocab()["new"] == 99
    assert len(own.tokenize("new")) == 1
