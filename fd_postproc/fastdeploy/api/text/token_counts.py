"""Counts of the tokens of texts; no text is tokenised twice.

FastDeploy counts reasoning tokens by ``len(tokenizer.tokenize(delta))``: 30 us, of which the tokenizers
library takes 3.  Deltas repeat, since most are one token.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ...gate.seams import NotPlain
from . import mends
from .samples import CANNED

_MOST = 1 << 15  # texts that are remembered
_LONGEST = 64  # characters of a text that is worth remembering
_LIBRARY_LAYER = "transformers.tokenization_utils_fast"


class CountingTokenizer:
    """Tokenizer for callers that need only the number of tokens; FastDeploy's does everything else."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._count = counter(tokenizer)
        self._mends = mends.are_on()
        self._counts: dict[str, range] = {}
        self._vocabulary: tuple[Any, Any] = (None, None)

    def tokenize(self, text: Any, **options: Any) -> Any:
        """A sequence with as many items as `text` has tokens.

        None has none: a parser says so that a whole answer has no reasoning.
        """
        if text is None and self._mends:
            mends.count(mends.THOUGHT)
            return ()
        tokens = self._counts.get(text) if type(text) is str else None
        if tokens is not None:
            return tokens
        if type(text) is not str or options:
            return self._tokenizer.tokenize(text, **options)
        tokens = range(self._count(text))
        if len(text) <= _LONGEST:
            if len(self._counts) >= _MOST:
                self._counts.clear()
            self._counts[text] = tokens
        return tokens

    def get_vocab(self) -> Any:
        """The vocabulary, cached: each of FastDeploy's tool parsers asks for it."""
        size = self._size()
        if self._vocabulary[0] != size:
            self._counts.clear()  # a token was added
            self._vocabulary = size, self._tokenizer.get_vocab()
        return self._vocabulary[1]

    def _size(self) -> Any:
        """A value that changes with each token that is added.

        The library's ``len`` makes the vocabulary to count it: 39 ms for 150,000 tokens.
        """
        library = vars(self._tokenizer).get("_tokenizer")
        added = getattr(library, "get_added_tokens_decoder", None)
        return len(self._tokenizer) if added is None else (library.get_vocab_size(False), len(added()))

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class UncountedTokenizer:
    """Tokenizer for answers whose token counts reach no client: each text has 0 tokens."""

    def __init__(self, tokenizer: CountingTokenizer) -> None:
        self._tokenizer = tokenizer
        self.get_vocab = tokenizer.get_vocab

    def tokenize(self, text: Any, **options: Any) -> Any:
        """An empty sequence; whatever is no text is the tokenizer's."""
        return () if type(text) is str and not options else self._tokenizer.tokenize(text, **options)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def counter(tokenizer: Any) -> Callable[[str], int]:
    """The function that counts tokens: the tokenizers library's, or FastDeploy's way."""
    try:
        return _library_counter(tokenizer)
    except NotPlain:
        return lambda text: len(tokenizer.tokenize(text))


def _library_counter(tokenizer: Any) -> Callable[[str], int]:
    """The function that calls the tokenizers library; NotPlain if layers above it may change the number."""
    library = vars(tokenizer).get("_tokenizer")
    if library is None or type(library) is not importlib.import_module("tokenizers").Tokenizer:
        raise NotPlain("it is none of the tokenizers library's")
    if getattr(type(tokenizer).tokenize, "__module__", None) != _LIBRARY_LAYER:
        raise NotPlain("it has its own tokenize")
    encode = library.encode

    def count(text: str) -> int:
        if library.truncation is not None or library.padding is not None:  # of the last prompt
            return len(tokenizer.tokenize(text))  # which takes them off
        return len(encode(text, add_special_tokens=False))

    for text in (*CANNED, *"".join(CANNED)):
        if count(text) != len(tokenizer.tokenize(text)):
            raise NotPlain("the layers count otherwise")
    return count
